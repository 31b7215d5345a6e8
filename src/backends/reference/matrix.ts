import type { HostTensor } from '../../ops/host-tensor.ts';
import { type Activation, matmulSizes } from '../../ops/matrix.ts';
import { broadcastStrides, elementCount, strides } from '../../ops/shape.ts';
import { at, forEachIndex, offsetOf, type ReferenceOperator } from './elements.ts';
import { FLOAT_ELEMENTS } from './map.ts';

/** Offset of the matrix that each leading index reads: the strides of the leading sizes, 0 where they broadcast. */
function batchStrides(shape: readonly number[], batch: readonly number[]): number[] {
  const size = elementCount(shape.slice(-2));
  return broadcastStrides(shape.slice(0, -2), batch).map((step) => step * size);
}

export const MATRICES: Readonly<Record<string, ReferenceOperator>> = {
  matmul(inputs, attributes, outputs) {
    const [a, b, bias] = inputs as readonly [HostTensor, HostTensor, HostTensor?];
    const output = outputs[0] as HostTensor;
    const { batch, m, n, k } = matmulSizes(a.shape, b.shape, attributes);
    const [rowA, innerA] = attributes['transposeA'] ? [1, m] : [k, 1];
    const [innerB, columnB] = attributes['transposeB'] ? [1, k] : [n, 1];
    const activation = attributes['activation'] as Activation;
    const activate = activation === 'none' ? (x: number) => x : (x: number) => FLOAT_ELEMENTS[activation](x, 0, 0);
    const [stepsA, stepsB, stepsOut] = [batchStrides(a.shape, batch), batchStrides(b.shape, batch), strides(output.shape)];
    forEachIndex(batch, (index) => {
      const [startA, startB, startOut] = [offsetOf(index, stepsA), offsetOf(index, stepsB), offsetOf(index, stepsOut)];
      for (let row = 0; row < m; row++) {
        for (let column = 0; column < n; column++) {
          let sum = bias ? at(bias.data, column) : 0;
          for (let i = 0; i < k; i++) {
            sum += at(a.data, startA + row * rowA + i * innerA) * at(b.data, startB + i * innerB + column * columnB);
          }
          output.data[startOut + row * n + column] = activate(sum);
        }
      }
    });
  },
};
