import type { HostTensor } from '../../ops/host-tensor.ts';
import { gatherAxes } from '../../ops/indexing.ts';
import { elementCount, normalizeAxis, strides } from '../../ops/shape.ts';
import { at, checkIndex, forEachIndex, forEachLane, offsetOf, type ReferenceOperator } from './elements.ts';
import { storeValue } from './map.ts';

/**
 * Calls `visit` for each row of indices [.., K] with the offset of the block that it addresses in a tensor of this
 * shape, all rows checked before the first visit.
 */
function forEachBlock(
  operator: string,
  indices: HostTensor,
  depth: number,
  shape: readonly number[],
  visit: (row: number, offset: number, length: number) => void,
): void {
  const rows = depth === 0 ? elementCount(indices.shape.slice(0, -1)) : indices.data.length / depth;
  const steps = strides(shape).slice(0, depth);
  const length = elementCount(shape.slice(depth));
  const offsets = Array.from({ length: rows }, (_, row) => {
    const index = Array.from({ length: depth }, (__, i) => checkIndex(operator, at(indices.data, row * depth + i), at(shape, i)));
    return offsetOf(index, steps);
  });
  for (const [row, offset] of offsets.entries()) visit(row, offset, length);
}

function depthOf(indices: HostTensor): number {
  return at(indices.shape, indices.shape.length - 1);
}

/** Greatest first, NaN before all numbers, equal ones in the order of their indices. */
function topOrder(values: readonly number[]): number[] {
  const before = (a: number, b: number) => (Number.isNaN(a) ? !Number.isNaN(b) : a > b);
  return values
    .map((_, i) => i)
    .sort((i, j) => (before(at(values, i), at(values, j)) ? -1 : before(at(values, j), at(values, i)) ? 1 : i - j));
}

export const INDEXINGS: Readonly<Record<string, ReferenceOperator>> = {
  gather(inputs, attributes, outputs) {
    const [x, indices] = inputs as readonly [HostTensor, HostTensor];
    const output = outputs[0] as HostTensor;
    const { axis, batchDims } = gatherAxes(x.shape, indices.shape, attributes);
    for (const index of indices.data) checkIndex('gather', index, at(x.shape, axis));
    const [stepsX, stepsIndices] = [strides(x.shape), strides(indices.shape)];
    const inner = indices.shape.length - batchDims;
    forEachIndex(output.shape, (index, flat) => {
      const where = [...index.slice(0, batchDims), ...index.slice(axis, axis + inner)];
      const picked = at(indices.data, offsetOf(where, stepsIndices));
      output.data[flat] = at(x.data, offsetOf([...index.slice(0, axis), picked, ...index.slice(axis + inner)], stepsX));
    });
  },

  'gather-nd'(inputs, _, outputs) {
    const [x, indices] = inputs as readonly [HostTensor, HostTensor];
    const output = outputs[0] as HostTensor;
    forEachBlock('gather-nd', indices, depthOf(indices), x.shape, (row, offset, length) => {
      for (let i = 0; i < length; i++) output.data[row * length + i] = at(x.data, offset + i);
    });
  },

  'scatter-nd'(inputs, _, outputs) {
    const [indices, updates] = inputs as readonly [HostTensor, HostTensor];
    const output = outputs[0] as HostTensor;
    const sums = new Float64Array(output.data.length);
    forEachBlock('scatter-nd', indices, depthOf(indices), output.shape, (row, offset, length) => {
      for (let i = 0; i < length; i++) {
        const sum = at(sums, offset + i) + at(updates.data, row * length + i);
        sums[offset + i] = output.dtype === 'int32' ? sum | 0 : sum;
      }
    });
    for (let i = 0; i < sums.length; i++) output.data[i] = storeValue(at(sums, i), output.dtype);
  },

  'tensor-scatter-update'(inputs, _, outputs) {
    const [x, indices, updates] = inputs as readonly [HostTensor, HostTensor, HostTensor];
    const output = outputs[0] as HostTensor;
    output.data.set(x.data);
    forEachBlock('tensor-scatter-update', indices, depthOf(indices), x.shape, (row, offset, length) => {
      for (let i = 0; i < length; i++) output.data[offset + i] = at(updates.data, row * length + i);
    });
  },

  'sparse-to-dense'(inputs, _, outputs) {
    const [indices, values, fallback] = inputs as readonly [HostTensor, HostTensor, HostTensor];
    const output = outputs[0] as HostTensor;
    const depth = indices.shape.length === 2 ? depthOf(indices) : 1;
    output.data.fill(at(fallback.data, 0));
    forEachBlock('sparse-to-dense', indices, depth, output.shape, (row, offset) => {
      output.data[offset] = at(values.data, values.shape.length === 0 ? 0 : row);
    });
  },

  concat(inputs, attributes, outputs) {
    const output = outputs[0] as HostTensor;
    const axis = normalizeAxis('concat', attributes['axis'] as number, output.shape.length);
    const steps = strides(output.shape);
    let start = 0;
    for (const x of inputs) {
      forEachIndex(x.shape, (index, flat) => {
        output.data[start * at(steps, axis) + offsetOf(index, steps)] = at(x.data, flat);
      });
      start += at(x.shape, axis);
    }
  },

  pad(inputs, attributes, outputs) {
    const [x, output] = [inputs[0] as HostTensor, outputs[0] as HostTensor];
    const paddings = attributes['paddings'] as readonly number[];
    const steps = strides(output.shape);
    output.data.fill(attributes['value'] as number);
    const start = offsetOf(
      x.shape.map((_, i) => at(paddings, 2 * i)),
      steps,
    );
    forEachIndex(x.shape, (index, flat) => {
      output.data[start + offsetOf(index, steps)] = at(x.data, flat);
    });
  },

  'one-hot'(inputs, attributes, outputs) {
    const [indices, output] = [inputs[0] as HostTensor, outputs[0] as HostTensor];
    const depth = attributes['depth'] as number;
    output.data.fill(attributes['off'] as number);
    for (const [row, index] of indices.data.entries()) {
      if (index >= 0 && index < depth) output.data[row * depth + index] = attributes['on'] as number;
    }
  },

  'top-k'(inputs, attributes, outputs) {
    const x = inputs[0] as HostTensor;
    const [values, places] = outputs as readonly [HostTensor, HostTensor];
    const k = attributes['k'] as number;
    forEachLane(x.shape, x.shape.length - 1, (start, _, length, lane) => {
      const order = topOrder(Array.from(x.data.subarray(start, start + length)));
      for (let i = 0; i < k; i++) {
        values.data[lane * k + i] = at(x.data, start + at(order, i));
        places.data[lane * k + i] = at(order, i);
      }
    });
  },

  tile(inputs, _, outputs) {
    const [x, output] = [inputs[0] as HostTensor, outputs[0] as HostTensor];
    const steps = strides(x.shape);
    forEachIndex(output.shape, (index, flat) => {
      const own = index.map((place, i) => place % at(x.shape, i));
      output.data[flat] = at(x.data, offsetOf(own, steps));
    });
  },

  cumsum(inputs, attributes, outputs) {
    const [x, output] = [inputs[0] as HostTensor, outputs[0] as HostTensor];
    const axis = normalizeAxis('cumsum', attributes['axis'] as number, x.shape.length);
    forEachLane(x.shape, axis, (start, step, length) => {
      let sum = 0;
      for (let i = 0; i < length; i++) {
        const place = start + (attributes['reverse'] ? length - 1 - i : i) * step;
        const next = x.dtype === 'int32' ? (sum + at(x.data, place)) | 0 : sum + at(x.data, place);
        output.data[place] = attributes['exclusive'] ? sum : next;
        sum = next;
      }
    });
  },
};
