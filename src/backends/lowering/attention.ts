import { attentionScale } from '../../ops/attention.ts';
import type { Attributes } from '../../ops/define.ts';
import { elementBytes } from '../../ops/dtype.ts';
import type { KernelCall, OperandView } from '../backend.ts';
import { at, broadcastTo, call, coalesce, floatBits, product, spaceWords } from './words.ts';

// Measured: floating-point operations a nanosecond of the two products, and nanoseconds a score for its softmax; one
// query row reads k and v at the speed of memory.
const FLOPS_PER_NS = 25;
const SCORE_NS = 1.2;
const BYTES_PER_NS = 20;

/** Splits the last leading stride in two: from group to group, and from head to head inside it. */
function grouped(strides: readonly number[], group: number): number[] {
  return [...strides.slice(0, -1), at(strides, -1) * group, at(strides, -1)];
}

export function lowerAttention(inputs: readonly OperandView[], output: OperandView, attributes: Attributes): KernelCall {
  const [q, k, v, mask] = inputs as readonly [OperandView, OperandView, OperandView, OperandView?];
  const [queries, d] = q.shape.slice(-2) as [number, number];
  const [sk, dv] = v.shape.slice(-2) as [number, number];
  let dims = q.shape.slice(0, -2);
  const maskStrides = mask ? broadcastTo(mask.shape, mask.strides, [...dims, queries, sk]) : new Array<number>(dims.length + 2).fill(0);
  let leading = [q.strides, k.strides, v.strides, maskStrides, output.strides].map((strides) => strides.slice(0, -2));
  let [qRow, maskRow, outRow] = [at(q.strides, -2), at(maskStrides, -2), at(output.strides, -2)];
  let sq = queries;
  let causal = attributes['causal'] === true;

  const heads = dims.length > 0 ? at(dims, -1) : 1;
  const group = dims.length > 0 && at(k.shape, dims.length - 1) > 0 ? heads / at(k.shape, dims.length - 1) : 1;
  if (group > 1) {
    // The query heads of a group read the same keys: a dimension in which k and v do not move.
    dims = [...dims.slice(0, -1), heads / group, group];
    leading = leading.map((strides, i) => (i === 1 || i === 2 ? [...strides, 0] : grouped(strides, group)));
    if (sq === 1) {
      // In decoding they are the rows of one matrix, so that keys and values come from memory once for all of them.
      [qRow, maskRow, outRow] = [leading[0], leading[3], leading[4]].map((strides) => at(strides as number[], -1)) as [
        number,
        number,
        number,
      ];
      sq = group;
      causal = false;
      dims = dims.slice(0, -1);
      leading = leading.map((strides) => strides.slice(0, -1));
    }
  }
  const units = product(dims) * sq;
  const words = [
    units,
    sq,
    sk,
    d,
    dv,
    floatBits(attentionScale(attributes['scale'] as number | undefined, d)),
    Number(causal),
    qRow,
    at(q.strides, -1),
    at(k.strides, -2),
    at(k.strides, -1),
    at(v.strides, -2),
    at(v.strides, -1),
    maskRow,
    at(maskStrides, -1),
    outRow,
    ...spaceWords(coalesce(dims, ...leading)),
  ];
  const seen = (causal ? 0.6 : 1) * sk;
  const work = units * seen * ((2 * (d + dv)) / FLOPS_PER_NS + SCORE_NS);
  const reading = (product(dims) * seen * (d + dv) * elementBytes(k.dtype)) / BYTES_PER_NS;
  return {
    kernel: 'attention',
    pointers: [{ input: 0 }, { input: 1 }, { input: 2 }, mask ? { input: 3 } : { none: true }, { output: 0 }],
    words,
    units,
    costNs: 200 + Math.max(work, reading),
  };
}

export function lowerRotary(inputs: readonly OperandView[], outputs: readonly OperandView[], attributes: Attributes): KernelCall {
  const [x, cos, sin] = inputs as readonly [OperandView, OperandView, OperandView];
  const rows = x.shape.slice(0, -1);
  const d = at(x.shape, -1);
  const units = d === 0 ? 0 : product(rows);
  const angles = [...cos.strides.slice(-2), ...sin.strides.slice(-2)];
  const words = [units, at(rows, -1), d, Number(attributes['interleaved'] === true), ...angles, at(x.strides, -1)];
  return call('rotary', inputs, outputs, [...words, ...spaceWords(coalesce(rows, x.strides.slice(0, -1)))], units * (8 + d * 0.2));
}
