import { describe, expect, it } from 'vitest';
import type { GpuosError } from '../errors.ts';
import { OPERATORS, operatorByName, operatorId } from './index.ts';

function codeOf(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    return (error as GpuosError).code;
  }
  return 'none';
}

describe('the operator table', () => {
  it('starts with nop, so that a zeroed descriptor does nothing', () => {
    expect(operatorId('nop')).toBe(0);
    expect(operatorByName('nop').infer([], {})).toEqual([]);
  });

  it('has each name once, in kebab-case, and states what it does', () => {
    const names = OPERATORS.map((operator) => operator.name);
    expect(new Set(names).size).toBe(names.length);
    for (const operator of OPERATORS) {
      expect(operator.name).toMatch(/^[a-z][a-z0-9]*(-[a-z0-9]+)*$/);
      expect(operator.about.length).toBeGreaterThan(1);
      expect(operatorByName(operator.name)).toBe(operator);
      expect(OPERATORS[operatorId(operator.name)]).toBe(operator);
    }
  });

  it('gives composites, and only them, an expansion', () => {
    for (const operator of OPERATORS) expect(operator.expand !== undefined, operator.name).toBe(operator.kind === 'composite');
  });

  it('declares attribute defaults that its own check accepts', () => {
    for (const operator of OPERATORS) {
      for (const [name, attribute] of Object.entries(operator.attributes ?? {})) {
        const { min, max, values } = attribute;
        const fallback = attribute.default;
        expect(attribute.about.length, `${operator.name}.${name}`).toBeGreaterThan(3);
        if (fallback === undefined) continue;
        const expected = { integer: 'number', number: 'number', boolean: 'boolean', string: 'string', integers: 'object', shape: 'object' }[
          attribute.type
        ];
        expect(typeof fallback, `${operator.name}.${name}`).toBe(expected);
        if (values) expect(values).toContain(fallback);
        if (min !== undefined) expect(fallback).toBeGreaterThanOrEqual(min);
        if (max !== undefined) expect(fallback).toBeLessThanOrEqual(max);
      }
    }
  });

  it('refuses an unknown name with a near match', () => {
    expect(codeOf(() => operatorByName('matmull'))).toBe('GPUOS_UNKNOWN_OPERATOR');
    expect(() => operatorByName('matmull')).toThrow(/Did you mean "matmul"\?/);
    expect(() => operatorByName('SoftMax')).toThrow(/Did you mean "softmax"\?/);
    expect(() => operatorByName('log_softmax')).toThrow(/Did you mean "log-softmax"\?/);
    expect(() => operatorByName('zzzzzzzzzzz')).toThrow(/There is no operator "zzzzzzzzzzz"\. \[/);
    expect(codeOf(() => operatorByName('constructor'))).toBe('GPUOS_UNKNOWN_OPERATOR');
  });
});
