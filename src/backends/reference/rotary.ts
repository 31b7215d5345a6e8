import type { HostTensor } from '../../ops/host-tensor.ts';
import { elementCount } from '../../ops/shape.ts';
import { at, type ReferenceOperator } from './elements.ts';

export const ROTARIES: Readonly<Record<string, ReferenceOperator>> = {
  rotary(inputs, attributes, outputs) {
    const [x, cos, sin] = inputs as readonly [HostTensor, HostTensor, HostTensor];
    const output = outputs[0] as HostTensor;
    const [s, d] = x.shape.slice(-2) as [number, number];
    const half = d / 2;
    const rows = elementCount(x.shape.slice(0, -1));
    for (let row = 0; row < rows; row++) {
      for (let pair = 0; pair < half; pair++) {
        const [first, second] = attributes['interleaved'] ? [2 * pair, 2 * pair + 1] : [pair, pair + half];
        const [a, b] = [at(x.data, row * d + first), at(x.data, row * d + second)];
        const angle = (row % s) * half + pair;
        output.data[row * d + first] = a * at(cos.data, angle) - b * at(sin.data, angle);
        output.data[row * d + second] = b * at(cos.data, angle) + a * at(sin.data, angle);
      }
    }
  },
};
