import { attentionScale } from '../../ops/attention.ts';
import type { HostTensor } from '../../ops/host-tensor.ts';
import { broadcastStrides } from '../../ops/shape.ts';
import { at, forEachIndex, offsetOf, type ReferenceOperator } from './elements.ts';

export const ATTENTIONS: Readonly<Record<string, ReferenceOperator>> = {
  attention(inputs, attributes, outputs) {
    const [q, k, v, mask] = inputs as readonly [HostTensor, HostTensor, HostTensor, HostTensor?];
    const output = outputs[0] as HostTensor;
    const leading = q.shape.slice(0, -2);
    const [sq, d] = q.shape.slice(-2) as [number, number];
    const [sk, dv] = v.shape.slice(-2) as [number, number];
    const scale = attentionScale(attributes['scale'] as number | undefined, d);
    const heads = leading.length > 0 ? at(leading, leading.length - 1) : 1;
    const groups = leading.length > 0 ? at(k.shape, leading.length - 1) : 1;
    const maskSteps = mask ? broadcastStrides(mask.shape, [...leading, sq, sk]) : [];

    forEachIndex([...leading, sq], (index, row) => {
      const lead = Math.floor(row / sq);
      const query = at(index, leading.length);
      const head = Math.floor(lead / heads) * groups + Math.floor(((lead % heads) * groups) / heads);
      const seen = attributes['causal'] ? Math.max(0, Math.min(sk, query + 1 + sk - sq)) : sk;
      const logits = Array.from({ length: seen }, (_, key) => {
        let dot = 0;
        for (let i = 0; i < d; i++) dot += at(q.data, row * d + i) * at(k.data, (head * sk + key) * d + i);
        return dot * scale + (mask ? at(mask.data, offsetOf([...index, key], maskSteps)) : 0);
      });
      const max = logits.reduce((greatest, logit) => Math.max(greatest, logit), Number.NEGATIVE_INFINITY);
      if (max === Number.NEGATIVE_INFINITY) return; // No key is seen: the zeros stay.
      const weights = logits.map((logit) => Math.exp(logit - max));
      const sum = weights.reduce((total, weight) => total + weight, 0);
      for (let i = 0; i < dv; i++) {
        let mixed = 0;
        for (let key = 0; key < seen; key++) mixed += at(weights, key) * at(v.data, (head * sk + key) * dv + i);
        output.data[row * dv + i] = mixed / sum;
      }
    });
  },
};
