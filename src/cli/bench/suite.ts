/** What a bench suite is: a module beside this one that exports `about` and `run`. */

/** One measured figure, named as in the project's targets. */
export interface BenchRow {
  readonly name: string;
  readonly value: number;
  readonly unit: string;
  /** `wasm`, `cuda`, `reference`, `host`. */
  readonly device: string;
  /** For a row that compares (`.vs.` in its name): both times in one unit; value = baseline / ours. */
  readonly baseline?: number;
  readonly ours?: number;
  /** Of rows of the cuda device: the GPU, and its driver's version. */
  readonly gpu?: string;
  readonly driver?: string;
  readonly note?: string;
}

export interface BenchSuite {
  /** One line for the list of suites. */
  readonly about: string;
  /** Measures, and emits each row as soon as it is known. */
  run(emit: (row: BenchRow) => void): Promise<void>;
}

export const SUITES = ['submit', 'throughput', 'elementwise', 'model', 'inject', 'cuda'] as const;
export type SuiteName = (typeof SUITES)[number];

/** What is wrong with a row; undefined if nothing is. A row that compares has to show both its times. */
export function rowProblem(row: BenchRow): string | undefined {
  if (typeof row.name !== 'string' || !/^[a-z0-9][\w.-]*$/.test(row.name)) return `its name is ${JSON.stringify(row.name)}`;
  if (!Number.isFinite(row.value)) return `its value is ${row.value}`;
  if (typeof row.unit !== 'string' || row.unit === '') return 'it has no unit';
  if (typeof row.device !== 'string' || row.device === '') return 'it has no device';
  for (const field of ['baseline', 'ours'] as const) {
    if (row[field] !== undefined && !(Number.isFinite(row[field]) && row[field] > 0)) return `its ${field} is ${row[field]}`;
  }
  if (row.unit === 'ratio' && row.name.includes('.vs.')) {
    if (row.baseline === undefined || row.ours === undefined) return 'it compares, but lacks baseline or ours';
    if (!(Math.abs(row.baseline / row.ours / row.value - 1) <= 0.01)) return 'its value is not baseline / ours';
  }
  return undefined;
}
