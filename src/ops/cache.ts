import { at, checkDType, checkExactShape, checkRank, checkSameDType, FLOATS, mismatch, NUMBERS, refuse } from './checks.ts';
import { defineOperator, type OperatorDefinition, type TensorSpec } from './define.ts';
import { formatShape, sameShape } from './shape.ts';

/** Checks cache [.., S, D] and update [.., T, D]; gives S and T. */
function checkRows(name: string, cache: TensorSpec, update: TensorSpec): { s: number; t: number } {
  checkDType(name, 'cache', cache, NUMBERS);
  checkSameDType(name, ['cache', 'update'], cache, update);
  checkRank(name, 'cache', cache, 2);
  const rows = cache.shape.length - 2;
  const without = (spec: TensorSpec) => spec.shape.filter((_, i) => i !== rows);
  if (update.shape.length !== cache.shape.length || !sameShape(without(cache), without(update))) {
    throw mismatch(
      name,
      `cache ${formatShape(cache.shape)} and update ${formatShape(update.shape)} may differ only in their rows (the last size but one).`,
    );
  }
  return { s: at(cache.shape, rows), t: at(update.shape, rows) };
}

export const CACHE_OPERATORS: readonly OperatorDefinition[] = [
  defineOperator({
    name: 'cache-append',
    family: 'cache',
    kind: 'fixed',
    about: 'cache [.., S, D] with the rows position .. position + T - 1 replaced by update [.., T, D]; position is an int32 scalar',
    inputs: ['cache', 'update', 'position'],
    infer(inputs) {
      const [cache, update, position] = inputs as readonly [TensorSpec, TensorSpec, TensorSpec];
      const { s, t } = checkRows('cache-append', cache, update);
      if (t > s)
        throw mismatch(
          'cache-append',
          `update ${formatShape(update.shape)} has ${t} rows, but cache ${formatShape(cache.shape)} only ${s}.`,
        );
      checkDType('cache-append', 'position', position, ['int32']);
      checkExactShape('cache-append', 'position', position, []);
      return [{ shape: cache.shape, dtype: cache.dtype }];
    },
  }),
  defineOperator({
    name: 'cache-update',
    family: 'cache',
    kind: 'fixed',
    about:
      'cache [.., S, D] with row positions[t] replaced by row t of update [.., T, D]; positions is int32 [T]; the last write to a row stays',
    inputs: ['cache', 'update', 'positions'],
    infer(inputs) {
      const [cache, update, positions] = inputs as readonly [TensorSpec, TensorSpec, TensorSpec];
      const { t } = checkRows('cache-update', cache, update);
      checkDType('cache-update', 'positions', positions, ['int32']);
      checkExactShape('cache-update', 'positions', positions, [t]);
      return [{ shape: cache.shape, dtype: cache.dtype }];
    },
  }),
  defineOperator({
    name: 'prefix-match',
    family: 'cache',
    kind: 'fixed',
    about: 'length of the longest common prefix of a [N] and b [M], an int32 scalar',
    inputs: ['a', 'b'],
    infer(inputs) {
      for (const [i, name] of ['a', 'b'].entries()) {
        const spec = at(inputs, i);
        checkDType('prefix-match', name, spec, ['int32']);
        if (spec.shape.length !== 1) throw mismatch('prefix-match', `${name} ${formatShape(spec.shape)} must have rank 1.`);
      }
      return [{ shape: [], dtype: 'int32' }];
    },
  }),
  defineOperator({
    name: 'cache-compress',
    family: 'cache',
    kind: 'fixed',
    about:
      'x [.., D] as int8 with a scale a row: scale = max|x| / 127 in float32, q = round(x / scale) (halves to even, at most 127 from 0; all 0 unless ' +
      'scale > 0; NaN gives 0); four int8 a word, the first in the low byte, the last word padded with 0; a row with NaN or an infinity does not survive',
    inputs: ['x'],
    infer(inputs) {
      const x = at(inputs, 0);
      checkDType('cache-compress', 'x', x, FLOATS);
      checkRank('cache-compress', 'x', x, 1);
      const rows = x.shape.slice(0, -1);
      const d = at(x.shape, x.shape.length - 1);
      return [
        { shape: [...rows, Math.ceil(d / 4)], dtype: 'int32' },
        { shape: rows, dtype: 'float32' },
      ];
    },
  }),
  defineOperator({
    name: 'cache-decompress',
    family: 'cache',
    kind: 'fixed',
    about: 'q scale in float32, [.., size], from packed [.., ceil(size/4)] and scale [..] as cache-compress gives them',
    inputs: ['packed', 'scale'],
    attributes: { size: { type: 'integer', min: 0, about: 'elements of a row, D' } },
    infer(inputs, attributes) {
      const [packed, scale] = inputs as readonly [TensorSpec, TensorSpec];
      const size = attributes['size'] as number;
      checkDType('cache-decompress', 'packed', packed, ['int32']);
      checkDType('cache-decompress', 'scale', scale, ['float32']);
      checkExactShape('cache-decompress', 'packed', packed, [...scale.shape, Math.ceil(size / 4)]);
      return [{ shape: [...scale.shape, size], dtype: 'float32' }];
    },
  }),
  defineOperator({
    name: 'cache-evict',
    family: 'cache',
    kind: 'fixed',
    about: 'the first `sinks` and the last `window` rows of cache [.., S, D]: [.., sinks + window, D] (Xiao et al. 2023)',
    inputs: ['cache'],
    attributes: {
      window: { type: 'integer', min: 0, about: 'last rows to keep' },
      sinks: { type: 'integer', default: 0, min: 0, about: 'first rows to keep' },
    },
    infer(inputs, attributes) {
      const cache = at(inputs, 0);
      checkDType('cache-evict', 'cache', cache, NUMBERS);
      checkRank('cache-evict', 'cache', cache, 2);
      const [s, d] = cache.shape.slice(-2) as [number, number];
      const kept = (attributes['sinks'] as number) + (attributes['window'] as number);
      if (kept > s) {
        const asked = `sinks ${attributes['sinks']} and window ${attributes['window']}`;
        throw refuse(
          'GPUOS_BAD_ATTRIBUTE',
          'cache-evict',
          `${asked} ask for ${kept} rows, but cache ${formatShape(cache.shape)} has ${s}.`,
        );
      }
      return [{ shape: [...cache.shape.slice(0, -2), kept, d], dtype: cache.dtype }];
    },
  }),
];
