import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { LiveBuffers } from './live-buffers.ts';

describe('live buffers', () => {
  it('are found by every address in them, whatever came and went', () => {
    const event = fc.record({ slot: fc.nat(30), elements: fc.nat(64), look: fc.nat(31 * 256) });
    fc.assert(
      fc.property(fc.array(event, { maxLength: 120 }), (events) => {
        const buffers = new LiveBuffers();
        const alive = new Map<number, number>();
        for (const { slot, elements, look } of events) {
          const address = 256 * slot;
          if (alive.delete(address)) buffers.remove(address);
          else {
            alive.set(address, address + 4 * elements);
            buffers.add({ address, end: address + 4 * elements });
          }
          // Of two that meet there, the one that begins.
          const expected = [...alive].filter(([start, end]) => start <= look && look <= end).sort(([a], [b]) => b - a)[0];
          const found = buffers.find(look);
          expect(found < 0 ? undefined : [buffers.start(found), buffers.end(found)]).toEqual(expected);
          expect(buffers.size).toBe(alive.size);
        }
      }),
      { seed: 3, numRuns: 300 },
    );
  });

  it('remove nothing that is not there', () => {
    const buffers = new LiveBuffers();
    buffers.add({ address: 256, end: 512 });
    buffers.remove(260);
    buffers.remove(0);
    expect(buffers.size).toBe(1);
    expect(buffers.find(255)).toBe(-1);
    expect(buffers.find(513)).toBe(-1);
  });
});
