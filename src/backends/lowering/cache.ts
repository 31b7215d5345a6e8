import type { Attributes } from '../../ops/define.ts';
import type { KernelCall, OperandView } from '../backend.ts';
import { at, call, coalesce, product, spaceWords } from './words.ts';

const COPY_NS = 0.2;

/** cache-append and cache-update: the output may share the cache's memory. */
export function lowerCacheWrite(kernel: string, inputs: readonly OperandView[], outputs: readonly OperandView[]): KernelCall {
  const [cache, update] = inputs as readonly [OperandView, OperandView];
  const [s, d] = cache.shape.slice(-2) as [number, number];
  const units = d === 0 ? 0 : product(cache.shape.slice(0, -1));
  const rows = spaceWords(coalesce(update.shape.slice(0, -1), update.strides.slice(0, -1)));
  return call(kernel, inputs, outputs, [units, s, at(update.shape, -2), d, at(update.strides, -1), ...rows], units * (2 + d * COPY_NS));
}

export function lowerPrefixMatch(inputs: readonly OperandView[], outputs: readonly OperandView[]): KernelCall {
  const [n, m] = inputs.map((input) => at(input.shape, 0)) as [number, number];
  return call('prefix_match', inputs, outputs, [1, n, m], Math.min(n, m) * COPY_NS);
}

export function lowerCompress(inputs: readonly OperandView[], outputs: readonly OperandView[]): KernelCall {
  const x = inputs[0] as OperandView;
  const rows = x.shape.slice(0, -1);
  const d = at(x.shape, -1);
  const units = product(rows);
  const space = spaceWords(coalesce(rows, x.strides.slice(0, -1)));
  return call('cache_compress', inputs, outputs, [units, d, at(x.strides, -1), ...space], units * (10 + d * 2));
}

export function lowerDecompress(inputs: readonly OperandView[], outputs: readonly OperandView[], attributes: Attributes): KernelCall {
  const units = product((inputs[1] as OperandView).shape);
  const d = attributes['size'] as number;
  return call('cache_decompress', inputs, outputs, [units, d], units * (5 + d * 0.12));
}

export function lowerEvict(inputs: readonly OperandView[], outputs: readonly OperandView[], attributes: Attributes): KernelCall {
  const cache = inputs[0] as OperandView;
  const [s, d] = cache.shape.slice(-2) as [number, number];
  const [sinks, window] = [attributes['sinks'] as number, attributes['window'] as number];
  const units = d === 0 ? 0 : product(cache.shape.slice(0, -2)) * (sinks + window);
  return call('cache_evict', inputs, outputs, [units, s, d, sinks, window], units * d * COPY_NS);
}
