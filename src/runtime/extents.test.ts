import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { DTYPES, elementBytes } from '../ops/dtype.ts';
import { type Program, type ProgramInput, programLayout } from '../ops/program.ts';
import { Extents } from './extents.ts';

const input: fc.Arbitrary<ProgramInput> = fc.record({
  dtype: fc.constantFrom(...DTYPES),
  columnStride: fc.constantFrom(0 as const, 1 as const, 'strided' as const),
});
const stride = fc.integer({ min: -9, max: 9 });

/** A program, only as far as its memory goes, with sizes, row strides and column strides. */
const given = fc.nat(3).chain((outerRank) =>
  fc.record({
    outerRank: fc.constant(outerRank),
    inputs: fc.array(input, { minLength: 1, maxLength: 3 }),
    spaces: fc.array(fc.constantFrom('full' as const, 'row' as const), { minLength: 1, maxLength: 2 }),
    columns: fc.nat(4),
    dims: fc.array(fc.nat(3), { minLength: outerRank, maxLength: outerRank }),
    rowStrides: fc.array(stride, { minLength: 15, maxLength: 15 }),
    columnStrides: fc.array(stride, { minLength: 3, maxLength: 3 }),
    unsigned: fc.boolean(),
  }),
);

describe('extents of a program', () => {
  it('are what its loops touch, for every layout of the words', () => {
    fc.assert(
      fc.property(given, ({ outerRank, inputs, spaces, columns, dims, rowStrides, columnStrides, unsigned }) => {
        const program: Program = {
          inputs,
          outputs: spaces.map((space) => ({ node: 0, dtype: 'float32', space })),
          nodes: [],
          scalars: 0,
          outerRank,
        };
        const full = spaces.filter((space) => space === 'full').length;
        const strides = rowStrides.slice(0, outerRank * (inputs.length + full));
        const strided = inputs.filter(({ columnStride }) => columnStride === 'strided').length;
        const rows = dims.reduce((a, b) => a * b, 1);
        const signed = [columns, ...(outerRank > 0 ? [rows, 1, ...dims, ...strides] : []), ...columnStrides.slice(0, strided)];
        // The same 32 bits, as a caller may write them.
        const words = unsigned ? signed.map((word) => word >>> 0) : signed;
        const extents = new Extents(program);
        expect([extents.words, extents.inputs, extents.pointers]).toEqual([
          programLayout(program).words,
          inputs.length,
          inputs.length + spaces.length,
        ]);
        expect(words.length).toBe(extents.words);
        expect(extents.refusal(words, 1)).toBeUndefined();
        let stridesUsed = 0;
        let rowsUsed = 0;
        const next = (): number[] => strides.slice(outerRank * rowsUsed, outerRank * ++rowsUsed);
        const operands = [
          ...inputs.map(({ dtype, columnStride }) => ({
            bytes: elementBytes(dtype),
            rowStrides: next(),
            column: columnStride === 'strided' ? (columnStrides[stridesUsed++] as number) : columnStride,
            atLeastOne: columnStride === 0,
          })),
          ...spaces.map((space) =>
            space === 'full'
              ? { bytes: 4, rowStrides: next(), column: 1, atLeastOne: false }
              : { bytes: 4, rowStrides: dims.map((_, i) => dims.slice(i + 1).reduce((a, b) => a * b, 1)), column: 0, atLeastOne: true },
          ),
        ];
        operands.forEach((operand, i) => {
          const touched: number[] = [];
          const each = (dim: number, offset: number): void => {
            if (dim < dims.length) {
              for (let r = 0; r < (dims[dim] as number); r++) each(dim + 1, offset + r * (operand.rowStrides[dim] as number));
              return;
            }
            const count = operand.atLeastOne ? Math.max(1, columns) : columns;
            for (let c = 0; c < count; c++) touched.push(offset + c * operand.column);
          };
          each(0, 0);
          extents.measure(i, words);
          expect(extents.elementBytes(i)).toBe(operand.bytes);
          if (touched.length === 0) expect(extents.last).toBeLessThan(extents.first);
          // The pointer itself always counts, as the loops start there.
          else expect([extents.first, extents.last]).toEqual([Math.min(...touched), Math.max(...touched)]);
        });
      }),
      { seed: 11, numRuns: 1500 },
    );
  });

  it('refuse words that contradict each other', () => {
    const rows: Program = {
      inputs: [{ dtype: 'float32', columnStride: 1 }],
      outputs: [{ node: 0, dtype: 'float32', space: 'full' }],
      nodes: [],
      scalars: 0,
      outerRank: 1,
    };
    const refusal = (...words: number[]) => new Extents(rows).refusal(words, 1);
    expect(refusal(4, 6, 3, 6, 4, 4)).toBeUndefined();
    expect(refusal(-1, 6, 3, 6, 4, 4)).toMatch(/word 0/);
    expect(refusal(2 ** 31, 6, 3, 6, 4, 4)).toMatch(/word 0/);
    expect(refusal(4, 7, 7, 6, 4, 4)).toMatch(/word 1.*7.*6/);
    expect(refusal(4, 6, 4, 6, 4, 4)).toMatch(/word 2/);
    expect(refusal(4, 6, 0, 6, 4, 4)).toMatch(/word 2/);
    expect(refusal(4, 6, 3, -6, 4, 4)).toMatch(/word 3/);
    const sum: Program = {
      ...rows,
      outerRank: 0,
      nodes: [
        { kind: 'input', input: 0, dtype: 'float32' },
        { kind: 'reduce', op: 'sum', arg: 0, dtype: 'float32' },
      ],
    };
    expect(new Extents(sum).refusal([4], 2)).toMatch(/tiles is 2/);
    expect(new Extents(sum).refusal([4], 1)).toBeUndefined();
  });
});
