/** Plays a random program on an engine, and holds what it reads to the reference. */
import { expect } from 'vitest';
import type { HostData } from '../../src/ops/host-tensor.ts';
import type { Engine } from '../../src/tensor/engine.ts';
import type { Tensor } from '../../src/tensor/tensor.ts';
import type { Script } from './graph.ts';

/** What every read of a script gave, in the order of its steps. */
export type Readings = Map<number, HostData>;

export async function play(engine: Engine, script: Script): Promise<Readings> {
  const tensors = new Map<number, Tensor>();
  const readings: Readings = new Map();
  const tensor = (id: number): Tensor => tensors.get(id) as Tensor;
  try {
    for (const [at, step] of script.steps.entries()) {
      if (step.kind === 'leaf') {
        const { host } = script.values[step.value]!;
        tensors.set(step.value, engine.fromHost(host.data, host.shape, host.dtype));
      } else if (step.kind === 'apply') {
        const outputs = engine.apply(step.operator, step.inputs.map(tensor), step.attributes);
        expect(outputs.length).toBe(step.outputs.length);
        for (const [i, id] of step.outputs.entries()) tensors.set(id, outputs[i] as Tensor);
      } else if (step.kind === 'flush') engine.flush();
      else if (step.kind === 'dispose') tensor(step.value).dispose();
      else readings.set(at, step.blocking ? tensor(step.value).dataSync() : await tensor(step.value).data());
    }
  } finally {
    // After a failure, so that the next, smaller program starts clean.
    for (const left of tensors.values()) left.dispose();
  }
  return readings;
}

/**
 * Of values that are only close: up to sixty operations of slope about 1, each rounding a few units in the
 * last place of values up to 64; a mistake in fusion is of another order.
 */
const CLOSE = 2e-3;

export function compare(script: Script, readings: Readings, what: string): void {
  for (const [at, data] of readings) {
    const step = script.steps[at]!;
    if (step.kind !== 'read') continue;
    const { host, certainty, bound } = script.values[step.value]!;
    expect(data.length, `${what}: length of value ${step.value}`).toBe(host.data.length);
    const allowed = certainty === 'exact' ? 0 : CLOSE * Math.max(1, Math.min(bound, 4));
    for (let i = 0; i < data.length; i++) {
      const [got, want] = [data[i] as number, host.data[i] as number];
      if (!(Math.abs(got - want) <= allowed))
        expect.fail(`${what}: step ${at}, element ${i} of value ${step.value} is ${got}, not ${want}`);
    }
  }
}

export function compareBits(script: Script, a: Readings, b: Readings): void {
  for (const [at, data] of a) {
    const step = script.steps[at]!;
    if (step.kind !== 'read' || script.values[step.value]!.certainty === 'close') continue;
    expect(b.get(at), `step ${at}: value ${step.value} fused and not fused`).toEqual(data);
  }
}

/** The program in words, one line a step. */
export function tell(script: Script): string {
  return script.steps
    .map((step, at) => {
      if (step.kind === 'leaf')
        return `${at}: %${step.value} = ${script.values[step.value]!.host.dtype} [${script.values[step.value]!.host.shape.join()}]`;
      if (step.kind !== 'apply') return `${at}: ${step.kind}${'value' in step ? ` %${step.value}` : ''}`;
      const outputs = step.outputs.map((id) => `%${id} [${script.values[id]!.host.shape.join()}]`).join(', ');
      return `${at}: ${outputs} = ${step.operator}(${step.inputs.map((id) => `%${id}`).join(', ')}) ${JSON.stringify(step.attributes)}`;
    })
    .join('\n');
}
