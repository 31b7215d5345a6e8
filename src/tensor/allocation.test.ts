import { afterAll, expect, it } from 'vitest';
import { init } from '../runtime/system.ts';
import { engineOf } from './engine.ts';
import type { Tensor } from './tensor.ts';

/**
 * What a call takes of V8's heap. The more that is, the more calls the collector comes in, which take ten times as long.
 */
const system = init({ device: 'wasm', workers: 0 });
const engine = engineOf(system);
afterAll(() => system.shutdown());

const KIB = 1024;
const WARM_UP = 1500;
const CALLS = 200;
const values = new Float32Array(WARM_UP + CALLS + 2);

const used = (): number => process.memoryUsage().heapUsed;
/** To look takes something, too; and a collection in between makes some of the differences negative. */
const median = (list: number[]): number => list.sort((a, b) => a - b)[list.length >> 1] as number;
const looking = (): number => median(Array.from({ length: CALLS }, () => -used() + used()));

it('a call of a length never seen takes little of the heap', () => {
  const recorded: number[] = [];
  const planned: number[] = [];
  for (let i = 0; i < WARM_UP + CALLS; i++) {
    const length = 2 + i;
    const [x, b] = [0, 1].map(() => engine.fromHost(values.subarray(0, length), [length])) as [Tensor, Tensor];
    const before = used();
    const result = engine.tidy(() => {
      let value = x;
      for (let k = 0; k < 25; k++) value = value.add(b).mul(0.99).relu().neg();
      return value;
    });
    const between = used();
    engine.flush(result, true);
    const after = used();
    result.dataSync();
    for (const tensor of [result, x, b]) tensor.dispose();
    if (i < WARM_UP) continue;
    recorded.push(between - before);
    planned.push(after - between);
  }
  const own = looking();
  // Of 100 operations, 11 and 6 by now; another release of V8 may need somewhat more.
  expect((median(recorded) - own) / KIB).toBeLessThan(16.5);
  expect((median(planned) - own) / KIB).toBeLessThan(12);
});
