import { GpuosError } from '../../errors.ts';
import type { HostTensor } from '../../ops/host-tensor.ts';
import { elementCount } from '../../ops/shape.ts';
import { at, checkIndex, type ReferenceOperator } from './elements.ts';
import { roundHalfEven } from './map.ts';

/** Writes row t of every update into row `rowOf(t)` of its cache. */
function writeRows(cache: HostTensor, update: HostTensor, output: HostTensor, rowOf: (t: number) => number): void {
  const [s, d] = cache.shape.slice(-2) as [number, number];
  const t = at(update.shape, update.shape.length - 2);
  output.data.set(cache.data);
  for (let lead = 0; lead < elementCount(cache.shape.slice(0, -2)); lead++) {
    for (let row = 0; row < t; row++) {
      for (let i = 0; i < d; i++) output.data[(lead * s + rowOf(row)) * d + i] = at(update.data, (lead * t + row) * d + i);
    }
  }
}

export const CACHES: Readonly<Record<string, ReferenceOperator>> = {
  'cache-append'(inputs, _, outputs) {
    const [cache, update, position] = inputs as readonly [HostTensor, HostTensor, HostTensor];
    const first = at(position.data, 0);
    const s = at(cache.shape, cache.shape.length - 2);
    const t = at(update.shape, update.shape.length - 2);
    if (first < 0 || first + t > s) {
      throw new GpuosError(
        'GPUOS_INDEX_OUT_OF_RANGE',
        `cache-append: rows ${first} to ${first + t - 1} are out of range for a cache of ${s} rows.`,
      );
    }
    writeRows(cache, update, outputs[0] as HostTensor, (row) => first + row);
  },

  'cache-update'(inputs, _, outputs) {
    const [cache, update, positions] = inputs as readonly [HostTensor, HostTensor, HostTensor];
    const s = at(cache.shape, cache.shape.length - 2);
    for (const position of positions.data) checkIndex('cache-update', position, s);
    writeRows(cache, update, outputs[0] as HostTensor, (row) => at(positions.data, row));
  },

  'prefix-match'(inputs, _, outputs) {
    const [a, b] = inputs as readonly [HostTensor, HostTensor];
    let length = 0;
    while (length < Math.min(a.data.length, b.data.length) && a.data[length] === b.data[length]) length++;
    (outputs[0] as HostTensor).data[0] = length;
  },

  'cache-compress'(inputs, _, outputs) {
    const x = inputs[0] as HostTensor;
    const [packed, scales] = outputs as readonly [HostTensor, HostTensor];
    const d = at(x.shape, x.shape.length - 1);
    const words = Math.ceil(d / 4);
    for (let row = 0; row < scales.data.length; row++) {
      let greatest = 0;
      for (let i = 0; i < d; i++) greatest = Math.max(greatest, Math.abs(at(x.data, row * d + i)));
      const scale = Math.fround(greatest / 127);
      scales.data[row] = scale;
      if (!(scale > 0)) continue; // All zeros, or NaN: the bytes stay 0.
      for (let i = 0; i < d; i++) {
        const quotient = roundHalfEven(Math.fround(at(x.data, row * d + i) / scale));
        const byte = Number.isNaN(quotient) ? 0 : Math.min(Math.max(quotient, -127), 127);
        const word = row * words + Math.floor(i / 4);
        packed.data[word] = at(packed.data, word) | ((byte & 0xff) << (8 * (i % 4)));
      }
    }
  },

  'cache-decompress'(inputs, attributes, outputs) {
    const [packed, scales] = inputs as readonly [HostTensor, HostTensor];
    const output = outputs[0] as HostTensor;
    const size = attributes['size'] as number;
    const words = Math.ceil(size / 4);
    for (let row = 0; row < scales.data.length; row++) {
      for (let i = 0; i < size; i++) {
        const word = at(packed.data, row * words + Math.floor(i / 4));
        output.data[row * size + i] = ((word << (24 - 8 * (i % 4))) >> 24) * at(scales.data, row);
      }
    }
  },

  'cache-evict'(inputs, attributes, outputs) {
    const cache = inputs[0] as HostTensor;
    const output = outputs[0] as HostTensor;
    const [s, d] = cache.shape.slice(-2) as [number, number];
    const sinks = attributes['sinks'] as number;
    const kept = at(output.shape, output.shape.length - 2);
    for (let lead = 0; lead < elementCount(cache.shape.slice(0, -2)); lead++) {
      for (let row = 0; row < kept; row++) {
        const from = row < sinks ? row : s - kept + row;
        for (let i = 0; i < d; i++) output.data[(lead * kept + row) * d + i] = at(cache.data, (lead * s + from) * d + i);
      }
    }
  },
};
