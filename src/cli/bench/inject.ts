/** A new fused expression from its first recording to its values, and the same again from the cache. */
import { init } from '../../runtime/system.ts';
import { engineOf } from '../../tensor/engine.ts';
import type { Tensor } from '../../tensor/tensor.ts';
import { medianOf, quantile } from './statistics.ts';
import type { BenchRow } from './suite.ts';

export const about = 'first use of a new fused expression, and its use from the cache';

const EXPRESSIONS = 300;
const WARM_UP = 40;
const N = 1024;
const STEPS = 12;

const BINARY = ['add', 'mul', 'sub', 'maximum', 'minimum'] as const;
const UNARY = ['relu', 'exp', 'tanh', 'sigmoid', 'square', 'neg'] as const;

export async function run(emit: (row: BenchRow) => void): Promise<void> {
  const system = init();
  const engine = engineOf(system);
  const device = system.device.kind;
  let seed = 7;
  const pick = (n: number): number => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return (seed >>> 8) % n;
  };
  const inputs = Array.from({ length: 4 }, (_, i) =>
    engine.fromHost(
      Float32Array.from({ length: N }, (_, j) => Math.sin(i + j)),
      [N],
    ),
  );
  const first: number[] = [];
  const cached: number[] = [];
  for (let e = 0; e < EXPRESSIONS + WARM_UP; e++) {
    const steps = Array.from({ length: STEPS }, () => [pick(BINARY.length), pick(UNARY.length), pick(inputs.length)] as const);
    const evaluate = (): void => {
      const result = engine.tidy(() => {
        let value = inputs[0] as Tensor;
        for (const [binary, unary, input] of steps) {
          value = value.apply(BINARY[binary] as string, [inputs[input] as Tensor]).apply(UNARY[unary] as string);
        }
        return value;
      });
      result.dataSync();
      result.dispose();
    };
    const before = system.operators.counters.injections;
    const start = performance.now();
    evaluate();
    const end = performance.now();
    if (system.operators.counters.injections !== before + 1) continue; // drawn before
    const again: number[] = [];
    for (let i = 0; i < 5; i++) {
      const from = performance.now();
      evaluate();
      again.push(performance.now() - from);
    }
    if (e < WARM_UP) continue;
    first.push(end - start);
    cached.push(medianOf(again) * 1000);
  }
  const note = `${first.length} expressions of ${2 * STEPS} operations on ${N} floats: recorded, planned, compiled, published through the ring, run and read`;
  emit({ name: 'inject.first.p50', value: medianOf(first), unit: 'ms', device, note });
  emit({ name: 'inject.first.p99', value: quantile(first, 0.99), unit: 'ms', device, note });
  emit({ name: 'inject.cached.p50', value: medianOf(cached), unit: 'us', device, note: `${note}; the same expression again` });
  await system.shutdown();
}
