import { checkOneDType, checkRank, FLOATS, mismatch } from './checks.ts';
import { defineOperator, type OperatorDefinition, type Shape, type TensorSpec } from './define.ts';
import { broadcastsTo, formatShape, sameShape } from './shape.ts';

/** The scale that attention uses when none is given: 1 / sqrt(D). */
export function attentionScale(given: number | undefined, d: number): number {
  return given ?? 1 / Math.sqrt(d);
}

/** Leading sizes of k and v may be those of q, or have fewer heads in the last of them if their number divides q's. */
function headsAgree(q: Shape, k: Shape): boolean {
  if (sameShape(q, k)) return true;
  const last = q.length - 1;
  const heads = q[last];
  const groups = k[last];
  return last >= 0 && sameShape(q.slice(0, last), k.slice(0, -1)) && k.length === q.length && !!groups && (heads as number) % groups === 0;
}

export const ATTENTION_OPERATORS: readonly OperatorDefinition[] = [
  defineOperator({
    name: 'attention',
    family: 'attention',
    kind: 'fixed',
    about:
      'softmax(q k^T scale + mask) v (Vaswani et al. 2017): q [.., Sq, D], k [.., Sk, D], v [.., Sk, Dv], mask broadcast to [.., Sq, Sk]; ' +
      'k and v may have fewer heads (grouped queries: query head h reads head floor(h Hk / Hq)); a query that sees no key gives zeros',
    inputs: ['q', 'k', 'v', 'mask?'],
    attributes: {
      causal: { type: 'boolean', default: false, about: 'whether query i sees only the keys up to i + Sk - Sq' },
      scale: {
        type: 'number',
        optional: true,
        min: -Number.MAX_VALUE,
        max: Number.MAX_VALUE,
        about: 'factor of the logits; 1 / sqrt(D) by default',
      },
    },
    infer(inputs) {
      const dtype = checkOneDType('attention', ['q', 'k', 'v', 'mask'], inputs, FLOATS);
      const [q, k, v, mask] = inputs as readonly [TensorSpec, TensorSpec, TensorSpec, TensorSpec?];
      checkRank('attention', 'q', q, 2);
      checkRank('attention', 'k', k, 2);
      checkRank('attention', 'v', v, 2);
      const shown = () => `q ${formatShape(q.shape)}, k ${formatShape(k.shape)} and v ${formatShape(v.shape)}`;
      const leading = q.shape.slice(0, -2);
      const [sq, d] = q.shape.slice(-2) as [number, number];
      const [sk, dk] = k.shape.slice(-2) as [number, number];
      const [sv, dv] = v.shape.slice(-2) as [number, number];
      if (d !== dk) throw mismatch('attention', `${shown()}: the sizes ${d} of a query and ${dk} of a key differ.`);
      if (d === 0) throw mismatch('attention', `${shown()}: queries and keys have no elements.`);
      if (sk !== sv) throw mismatch('attention', `${shown()}: there are ${sk} keys and ${sv} values.`);
      if (!sameShape(k.shape.slice(0, -2), v.shape.slice(0, -2)))
        throw mismatch('attention', `${shown()}: the leading sizes of k and v differ.`);
      if (!headsAgree(leading, k.shape.slice(0, -2))) {
        throw mismatch('attention', `${shown()}: the leading sizes of q and k differ, other than by a number of heads that divides q's.`);
      }
      const logits = [...leading, sq, sk];
      if (mask && !broadcastsTo(mask.shape, logits)) {
        throw mismatch('attention', `mask ${formatShape(mask.shape)} does not broadcast to the logits ${formatShape(logits)}.`);
      }
      return [{ shape: [...leading, sq, dv], dtype }];
    },
  }),
];
