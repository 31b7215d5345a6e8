/** PyTorch in a process of its own, asked one thing at a time: see `cuda-baseline.py`. */
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { GpuosError } from '../../errors.ts';

export type Answer = Readonly<Record<string, unknown>>;

const SCRIPT = fileURLToPath(new URL('./cuda-baseline.py', import.meta.url));
const START_LIMIT_MS = 60_000;
const LEAVE_MS = 3000;

const unavailable = (text: string): GpuosError => new GpuosError('GPUOS_BASELINE_UNAVAILABLE', text);

export class Baseline {
  readonly #child: ChildProcess;
  readonly #lines: string[] = [];
  #arrived: (() => void) | undefined;
  #ended: string | undefined;
  readonly #kill = (): void => void this.#child.kill('SIGKILL');
  /** `2.11.0`. */
  version = '';

  private constructor(command: readonly string[]) {
    const [program, ...options] = command as [string, ...string[]];
    // Compilers of torch.compile in the process itself: they end with it.
    const env = { ...process.env, TORCHINDUCTOR_COMPILE_THREADS: '1' };
    this.#child = spawn(program, options, { env, stdio: ['pipe', 'pipe', 2] });
    process.once('exit', this.#kill);
    const end = (text: string): void => {
      this.#ended ??= text;
      process.off('exit', this.#kill);
      this.#arrived?.();
    };
    this.#child.on('error', (error) => end(`${program} cannot be started (${error.message})`));
    this.#child.on('close', (code, signal) => end(`it ended (${signal ?? `exit code ${code}`})`));
    // What cannot be written any more shows in the answer that does not come.
    this.#child.stdin?.on('error', () => {});
    if (this.#child.stdout !== null) {
      createInterface({ input: this.#child.stdout }).on('line', (line) => {
        this.#lines.push(line);
        this.#arrived?.();
      });
    }
  }

  /** @throws GPUOS_BASELINE_UNAVAILABLE without python3, torch or a GPU for it, or if that takes too long */
  static async start(command: readonly string[] = ['python3', SCRIPT], limitMs = START_LIMIT_MS): Promise<Baseline> {
    const baseline = new Baseline(command);
    const { torch } = await baseline.#next('to start', limitMs);
    baseline.version = String(torch);
    return baseline;
  }

  /** Asks and waits. What does not answer in time is ended. @throws GPUOS_BASELINE_UNAVAILABLE */
  async ask(request: Answer, limitMs: number): Promise<Answer> {
    this.#child.stdin?.write(`${JSON.stringify(request)}\n`);
    return await this.#next(String(request['do']), limitMs);
  }

  async #next(what: string, limitMs: number): Promise<Answer> {
    const until = performance.now() + limitMs;
    for (let line = this.#lines.shift(); ; line = this.#lines.shift()) {
      if (line !== undefined) {
        const answer = parsed(line);
        if (answer['error'] !== undefined) throw unavailable(`PyTorch failed (${what}): ${String(answer['error'])}`);
        return answer;
      }
      if (this.#ended !== undefined) throw unavailable(`PyTorch in python3 is needed (${what}): ${this.#ended}.`);
      const left = until - performance.now();
      if (left <= 0) {
        this.#kill();
        throw unavailable(`PyTorch took longer than ${limitMs / 1000} s (${what}) and was ended.`);
      }
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, left);
        this.#arrived = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  /** Has it leave; ends it if it does not. Never rejects. */
  async stop(): Promise<void> {
    this.#child.stdin?.end();
    const until = performance.now() + LEAVE_MS;
    while (this.#ended === undefined) {
      if (performance.now() > until) this.#kill();
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }
}

function parsed(line: string): Answer {
  try {
    return JSON.parse(line) as Answer;
  } catch {
    throw unavailable(`PyTorch's process wrote something else than an answer: ${line.slice(0, 80)}`);
  }
}

export const encodeFloats = (values: Float32Array): string =>
  Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString('base64');

export function decodeFloats(text: unknown): Float32Array {
  const bytes = Uint8Array.from(Buffer.from(String(text), 'base64'));
  return new Float32Array(bytes.buffer, 0, bytes.length >> 2);
}
