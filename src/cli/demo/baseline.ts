/** The parent's end of a baseline: starts its process, asks it to embed, and notices when it dies. */
import { type ChildProcess, fork } from 'node:child_process';
import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { GpuosError } from '../../errors.ts';
import type { BaselineReply, BaselineRequest } from './baseline-process.ts';
import { assertPackages, BASELINE_PACKAGES } from './packages.ts';

export type BaselineName = 'tfjs-wasm' | 'tfjs-cpu';

const PROCESS_FILE = fileURLToPath(new URL(`./baseline-process${extname(fileURLToPath(import.meta.url))}`, import.meta.url));

function unavailable(name: string, why: string): GpuosError {
  return new GpuosError('GPUOS_BASELINE_UNAVAILABLE', `the baseline ${name} cannot run: ${why}.`);
}

export class Baseline {
  readonly name: BaselineName;
  /** Of tfjs, as the process reports it. */
  version = '';
  readonly #child: ChildProcess;
  #exit: string | undefined;
  #waiting: ((reply: BaselineReply) => void) | undefined;

  private constructor(name: BaselineName) {
    this.name = name;
    this.#child = fork(PROCESS_FILE, [], { serialization: 'advanced', execArgv: [], stdio: ['ignore', 'ignore', 'ignore', 'ipc'] });
    this.#child.on('message', (reply) => this.#settle(reply as BaselineReply));
    this.#child.on('error', (error) => this.#end(error.message));
    this.#child.on('exit', (code, signal) => this.#end(`its process ended (${signal ?? `exit code ${code}`})`));
  }

  /**
   * Starts the baseline and loads the model. Throws GPUOS_BASELINE_UNAVAILABLE if a package is missing, it cannot
   * load, or its active backend is not the one that it is named after.
   */
  static async start(name: BaselineName): Promise<Baseline> {
    const backend = name.slice('tfjs-'.length);
    assertPackages([...Object.keys(BASELINE_PACKAGES)], 'GPUOS_BASELINE_UNAVAILABLE');
    const baseline = new Baseline(name);
    const reply = await baseline.#ask({ kind: 'load', backend });
    if (reply.kind === 'loaded' && reply.backend === backend) {
      baseline.version = reply.version;
      return baseline;
    }
    baseline.stop();
    if (reply.kind === 'failed') throw unavailable(name, reply.message);
    throw unavailable(name, `its active backend is ${reply.kind === 'loaded' ? reply.backend : 'unknown'}, not ${backend}`);
  }

  /** The embedding and how long the call took, measured in the process itself. */
  async embed(text: string): Promise<{ ms: number; vector: Float32Array }> {
    const reply = await this.#ask({ kind: 'embed', text });
    if (reply.kind === 'embedded') return reply;
    throw unavailable(this.name, reply.kind === 'failed' ? reply.message : 'it gave an unexpected answer');
  }

  stop(): void {
    if (this.#exit !== undefined) return;
    // A process that is busy notices the closed channel late.
    this.#child.kill('SIGKILL');
  }

  #ask(request: BaselineRequest): Promise<BaselineReply> {
    return new Promise((resolve) => {
      if (this.#exit !== undefined) return resolve({ kind: 'failed', message: this.#exit });
      this.#waiting = resolve;
      this.#child.send(request, (error) => {
        if (error) this.#settle({ kind: 'failed', message: error.message });
      });
    });
  }

  #settle(reply: BaselineReply): void {
    const waiting = this.#waiting;
    this.#waiting = undefined;
    waiting?.(reply);
  }

  #end(why: string): void {
    this.#exit ??= why;
    this.#settle({ kind: 'failed', message: this.#exit });
  }
}
