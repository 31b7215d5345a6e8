import type { Attributes } from '../../ops/define.ts';
import type { HostTensor } from '../../ops/host-tensor.ts';
import { normalizeAxis } from '../../ops/shape.ts';
import { at, forEachLane, type ReferenceOperator } from './elements.ts';

/** Fills each line along the axis: `compute` gets the line in double and gives its result. */
function alongAxis(axis: number, x: HostTensor, output: HostTensor, compute: (line: readonly number[]) => readonly number[]): void {
  forEachLane(x.shape, axis, (start, step, length) => {
    const line = Array.from({ length }, (_, i) => at(x.data, start + i * step));
    for (const [i, value] of compute(line).entries()) output.data[start + i * step] = value;
  });
}

function axisOf(name: string, x: HostTensor, attributes: Attributes): number {
  return normalizeAxis(name, attributes['axis'] as number, x.shape.length);
}

function total(values: readonly number[]): number {
  let sum = 0;
  for (const value of values) sum += value;
  return sum;
}

function greatest(values: readonly number[]): number {
  let max = Number.NEGATIVE_INFINITY;
  for (const value of values) max = Math.max(max, value);
  return max;
}

export const NORMALIZATIONS: Readonly<Record<string, ReferenceOperator>> = {
  softmax([input], attributes, [output]) {
    const x = input as HostTensor;
    alongAxis(axisOf('softmax', x, attributes), x, output as HostTensor, (line) => {
      const max = greatest(line);
      const sum = total(line.map((value) => Math.exp(value - max)));
      return line.map((value) => Math.exp(value - max) / sum);
    });
  },

  'log-softmax'([input], attributes, [output]) {
    const x = input as HostTensor;
    alongAxis(axisOf('log-softmax', x, attributes), x, output as HostTensor, (line) => {
      const max = greatest(line);
      const logSum = max + Math.log(total(line.map((value) => Math.exp(value - max))));
      return line.map((value) => value - logSum);
    });
  },

  'layer-norm'([input, gamma, beta], attributes, [output]) {
    const x = input as HostTensor;
    const epsilon = attributes['epsilon'] as number;
    alongAxis(x.shape.length - 1, x, output as HostTensor, (line) => {
      const mean = total(line) / line.length;
      const variance = total(line.map((value) => (value - mean) ** 2)) / line.length;
      return line.map((value, i) => {
        const normalized = (value - mean) / Math.sqrt(variance + epsilon);
        return normalized * (gamma ? at(gamma.data, i) : 1) + (beta ? at(beta.data, i) : 0);
      });
    });
  },

  'rms-norm'([input, gamma], attributes, [output]) {
    const x = input as HostTensor;
    const epsilon = attributes['epsilon'] as number;
    alongAxis(x.shape.length - 1, x, output as HostTensor, (line) => {
      const meanSquare = total(line.map((value) => value * value)) / line.length;
      return line.map((value, i) => (value / Math.sqrt(meanSquare + epsilon)) * (gamma ? at(gamma.data, i) : 1));
    });
  },
};
