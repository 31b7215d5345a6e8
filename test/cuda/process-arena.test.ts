import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { CodeArena, GUARD_BYTES } from '../../src/backends/cuda/process/code-arena.ts';

describe('CodeArena', () => {
  it('hands out each address once, aligned, inside, with a guard behind it, also to threads that share it', () => {
    const base = 0x7f12_3456_7800;
    const ask = fc.record({
      bytes: fc.integer({ min: 16, max: 20_000 }),
      alignment: fc.constantFrom(16, 128, 256, 4096),
      thread: fc.nat(1),
    });
    fc.assert(
      fc.property(fc.array(ask, { maxLength: 40 }), fc.integer({ min: 8192, max: 400_000 }), (asks, size) => {
        const used = new SharedArrayBuffer(4);
        const arenas = [new CodeArena(base, size, new Int32Array(used)), new CodeArena(base, size, new Int32Array(used))];
        let end = base;
        for (const { bytes, alignment, thread } of asks) {
          const arena = arenas[thread]!;
          const before = arena.usedBytes;
          let address: number;
          try {
            address = arena.reserve(bytes, alignment);
          } catch (error) {
            expect(error).toMatchObject({ code: 'GPUOS_OUT_OF_MEMORY' });
            // It is really full, and what does not fit takes nothing from what does.
            expect(base + before + bytes + GUARD_BYTES + alignment).toBeGreaterThan(base + size);
            expect(arena.usedBytes).toBe(before);
            continue;
          }
          expect(address).toBeGreaterThanOrEqual(end);
          expect(address % alignment).toBe(0);
          end = address + bytes + GUARD_BYTES;
          expect(end).toBeLessThanOrEqual(base + size);
          expect(arenas.map(({ usedBytes }) => usedBytes)).toEqual([end - base, end - base]);
        }
      }),
    );
  });
});
