/** Every value of float16 and bfloat16 through programs on the emulation of a block, compiled and interpreted. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { encodeProgram } from '../../src/backends/cuda/interpreter/index.ts';
import { compileEmulated, type DeviceMemory, deviceMemory, type Emulated, NO_GXX, reason } from '../cuda/emulation/emulation.ts';
import { ALL_BITS, nearest, same, turningPoints, valueOfBits } from '../half-values.ts';
import { halfPrograms } from '../wasm-codegen/half-programs.ts';
import { compileAll, runRow } from './machine.ts';

const DTYPES = ['float16', 'bfloat16'] as const;
const PROGRAMS = DTYPES.flatMap((dtype) => Object.values(halfPrograms(dtype)));
/** Columns at a time: what fits into the memory of the tests. */
const MOST = 100_000;

const wrong = (actual: readonly number[], expected: readonly number[]): number =>
  actual.findIndex((x, i) => !same(x, expected[i] as number));

describe.skipIf(NO_GXX)(reason('halves on the CUDA device'), () => {
  let compiled: Emulated;
  let interpreter: Emulated;
  let memory: DeviceMemory;
  beforeAll(() => {
    compiled = compileAll(PROGRAMS);
    interpreter = compileEmulated('#include "gpuos_abi.h"\n#include "interpreter.cuh"\n');
    memory = deviceMemory(4096);
  }, 120_000);
  afterAll(() => {
    for (const each of [compiled, interpreter, memory]) each.free();
  });

  const run = (form: string, index: number, list: readonly number[]): number[][] => {
    const program = PROGRAMS[index]!;
    if (form === 'interpreted') memory.bytes.set(new Uint8Array(encodeProgram(program)!.buffer));
    const results: number[][] = [[], []];
    for (let at = 0; at < list.length; at += MOST) {
      const some = runRow(
        program,
        (params, tiles) =>
          form === 'compiled'
            ? compiled.callAll(`p${index}`, params, tiles, { threads: 256 })
            : interpreter.callAll('operator_interpret', params, tiles, { threads: 256, data: memory.address }),
        [list.slice(at, at + MOST)],
      );
      some.forEach((values, o) => {
        for (const value of values) results[o]!.push(value);
      });
    }
    return results;
  };

  describe.each(DTYPES)('%s', (dtype) => {
    const first = 2 * DTYPES.indexOf(dtype);
    test.each(['compiled', 'interpreted'])('all values are loaded as they are, and stored again, %s', { timeout: 120_000 }, (form) => {
      const values = ALL_BITS.map((bits) => valueOfBits(bits, dtype));
      const [wide, back] = run(form, first, values) as [number[], number[]];
      expect(wrong(wide, values)).toBe(-1);
      expect(wrong(back, values)).toBe(-1);
    });

    test.each(['compiled', 'interpreted'])('float32 is rounded at every turning point, %s', { timeout: 120_000 }, (form) => {
      const points = turningPoints(dtype);
      const expected = points.map((x) => nearest(x, dtype));
      const [stored, rounded] = run(form, first + 1, points) as [number[], number[]];
      expect(wrong(stored, expected)).toBe(-1);
      expect(wrong(rounded, expected)).toBe(-1);
    });
  });
});
