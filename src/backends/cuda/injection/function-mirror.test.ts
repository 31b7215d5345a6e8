import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { FUNCTION_SLOTS } from '../../../abi/status.ts';
import { FunctionMirror, INTERPRETER } from './function-mirror.ts';

const OWN = 4;
const SYMBOLS = [INTERPRETER, 'a', 'b', 'c'];
/** Addresses that differ from image to image. */
const addressesOf = (image: number, symbols: readonly string[]) =>
  new Map(symbols.map((symbol) => [symbol, BigInt(1000 * (image + 1) + SYMBOLS.indexOf(symbol))]));
const ownOf = (image: number) => BigUint64Array.from({ length: 2 * OWN }, (_, i) => BigInt(i % 2 === 0 ? 100 * (image + 1) + i : 0));

describe('FunctionMirror', () => {
  it('has after every change of the image what a table has that is written from the start for it', () => {
    const entry = fc.record({
      fn: fc.integer({ min: OWN, max: OWN + 5 }),
      symbol: fc.constantFrom(...SYMBOLS),
      data: fc.option(fc.nat(2 ** 40)),
    });
    const step = fc.oneof(fc.record({ enter: entry }), fc.record({ image: fc.subarray(SYMBOLS) }));
    fc.assert(
      fc.property(fc.array(step, { maxLength: 30 }), (steps) => {
        let image = 0;
        let has: readonly string[] = SYMBOLS;
        let mirror = new FunctionMirror(ownOf(0), addressesOf(0, has));
        const model = new Map<number, { symbol: string; data: number }>();
        for (const one of steps) {
          if ('enter' in one) {
            const { fn, symbol, data } = one.enter;
            if (!has.includes(symbol)) {
              expect(() => mirror.enter([fn, symbol, 0])).toThrow(/has no function/);
              continue;
            }
            const words = mirror.enter(data === null ? [fn, symbol] : [fn, symbol, data]);
            expect(words.length).toBe(data === null ? 1 : 2);
            model.set(fn, { symbol, data: data ?? model.get(fn)?.data ?? 0 });
          } else {
            has = [INTERPRETER, ...one.image.filter((symbol) => symbol !== INTERPRETER)];
            mirror = mirror.moved(ownOf(++image), addressesOf(image, has));
            for (const [fn, { symbol }] of model) if (!has.includes(symbol)) model.delete(fn);
          }
          const { table } = mirror;
          expect([...table.subarray(0, 2 * OWN)]).toEqual([...ownOf(image)]);
          for (let fn = OWN; fn < table.length / 2; fn++) {
            const known = model.get(fn);
            expect(table[2 * fn]).toBe(known === undefined ? 0n : addressesOf(image, has).get(known.symbol));
            if (known !== undefined) expect(table[2 * fn + 1]).toBe(BigInt(known.data));
          }
          for (const fn of model.keys()) expect(2 * fn).toBeLessThan(table.length);
        }
      }),
    );
  });

  it('refuses a function that the table has no place for', () => {
    const mirror = new FunctionMirror(ownOf(0), addressesOf(0, SYMBOLS));
    for (const fn of [-1, 0.5, FUNCTION_SLOTS]) expect(() => mirror.enter([fn, 'a', 0])).toThrow(/There is no function/);
  });
});
