/** Medians and quantiles of measured times. */
export function quantile(values: readonly number[], q: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] as number;
}

export const medianOf = (values: readonly number[]): number => quantile(values, 0.5);

/** Runs every case `rounds` times in turn, so that a change of the machine's load meets all alike; times in us, by case. */
export function interleave(cases: Readonly<Record<string, () => void>>, rounds: number, calls: number): Record<string, number[]> {
  const times: Record<string, number[]> = {};
  for (const name of Object.keys(cases)) times[name] = [];
  for (let round = 0; round < rounds; round++) {
    for (const [name, run] of Object.entries(cases)) {
      // The first call after another case finds its caches cold; it is not the steady state that is asked for.
      run();
      for (let i = 0; i < calls; i++) {
        const start = performance.now();
        run();
        (times[name] as number[]).push((performance.now() - start) * 1000);
      }
    }
  }
  return times;
}
