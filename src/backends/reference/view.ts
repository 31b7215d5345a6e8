import type { Attributes } from '../../ops/define.ts';
import type { HostTensor } from '../../ops/host-tensor.ts';
import { broadcastStrides, normalizeAxes, strides } from '../../ops/shape.ts';
import { resolvePermutation } from '../../ops/view.ts';
import { at, copyStrided, offsetOf, type ReferenceOperator } from './elements.ts';

/** A view is a copy here: the strides, in elements, and the start by which it reads its input. */
function viewReference(
  read: (x: HostTensor, attributes: Attributes, output: HostTensor) => { steps: readonly number[]; start?: number },
): ReferenceOperator {
  return (inputs, attributes, outputs) => {
    const [x, output] = [inputs[0] as HostTensor, outputs[0] as HostTensor];
    const { steps, start = 0 } = read(x, attributes, output);
    copyStrided(x, steps, start, output);
  };
}

const sameElements: ReferenceOperator = (inputs, _, outputs) => {
  (outputs[0] as HostTensor).data.set((inputs[0] as HostTensor).data);
};

export const VIEWS: Readonly<Record<string, ReferenceOperator>> = {
  reshape: sameElements,
  squeeze: sameElements,
  'expand-dims': sameElements,

  transpose: viewReference((x, attributes) => ({
    steps: resolvePermutation(x.shape.length, attributes).map((axis) => at(strides(x.shape), axis)),
  })),

  slice: viewReference((x, attributes) => ({
    steps: strides(x.shape),
    start: offsetOf(attributes['begin'] as readonly number[], strides(x.shape)),
  })),

  'strided-slice': viewReference((x, attributes) => ({
    steps: strides(x.shape).map((step, i) => step * at(attributes['strides'] as readonly number[], i)),
    start: offsetOf(attributes['begin'] as readonly number[], strides(x.shape)),
  })),

  expand: viewReference((x, _, output) => ({ steps: broadcastStrides(x.shape, output.shape) })),

  reverse: viewReference((x, attributes) => {
    const axes = normalizeAxes('reverse', attributes['axes'] as readonly number[] | undefined, x.shape.length);
    const own = strides(x.shape);
    return {
      steps: own.map((step, i) => (axes.includes(i) ? -step : step)),
      start: offsetOf(
        x.shape.map((size, i) => (axes.includes(i) ? size - 1 : 0)),
        own,
      ),
    };
  }),
};
