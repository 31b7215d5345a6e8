/** How the kernel calls of tfjs were answered. */
export interface Statistics {
  /** Kernel calls that tfjs made on our backend. */
  readonly frameworkOps: number;
  /** Those recorded for the ring. */
  readonly ringOps: number;
  /** Those that only renamed a tensor's shape: no task can come of them. */
  readonly metadataOps: number;
  /** Those that were arithmetic on at most 64 integers whose values the host knew. */
  readonly hostOps: number;
  /** Those run by tfjs's own CPU kernels, with the data moved there and back. */
  readonly fallbackOps: number;
  /** Tasks that the ring was given. */
  readonly tasks: number;
  /** (ringOps + metadataOps + hostOps) / frameworkOps; 0 when nothing ran. */
  readonly nativeShare: number;
  /** Fallbacks by name of the kernel. */
  readonly fallbacks: Readonly<Record<string, number>>;
}

/** Counters of one backend; each kernel adds to exactly one of the first four. */
export class Counters {
  ring = 0;
  metadata = 0;
  host = 0;
  fallback = 0;
  readonly fallbacks = new Map<string, number>();

  countFallback(kernel: string): void {
    this.fallback++;
    this.fallbacks.set(kernel, (this.fallbacks.get(kernel) ?? 0) + 1);
  }

  reset(): void {
    this.ring = this.metadata = this.host = this.fallback = 0;
    this.fallbacks.clear();
  }

  /** With the number of tasks, which the tensor engine counts. */
  snapshot(tasks: number): Statistics {
    const native = this.ring + this.metadata + this.host;
    const frameworkOps = native + this.fallback;
    return {
      frameworkOps,
      ringOps: this.ring,
      metadataOps: this.metadata,
      hostOps: this.host,
      fallbackOps: this.fallback,
      tasks,
      nativeShare: frameworkOps === 0 ? 0 : native / frameworkOps,
      fallbacks: Object.fromEntries([...this.fallbacks].sort(([a], [b]) => (a < b ? -1 : 1))),
    };
  }
}
