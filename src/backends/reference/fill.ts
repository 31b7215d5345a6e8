import type { HostTensor } from '../../ops/host-tensor.ts';
import type { ReferenceOperator } from './elements.ts';

export const FILLS: Readonly<Record<string, ReferenceOperator>> = {
  fill(_, attributes, outputs) {
    (outputs[0] as HostTensor).data.fill(attributes['value'] as number);
  },
  range(_, attributes, outputs) {
    const { data } = outputs[0] as HostTensor;
    for (let i = 0; i < data.length; i++) data[i] = (attributes['start'] as number) + i * (attributes['step'] as number);
  },
};
