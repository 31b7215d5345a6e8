/**
 * Every `GPUOS_*` environment flag, in one table: its kind, default, range and meaning.
 * `docs/flags.md` has the same table, held equal by a test. A value is checked when it is read, and a name that
 * the table does not have is refused: a misspelt flag must not silently do nothing.
 */
import { homedir } from 'node:os';
import { join } from 'node:path';
import { GpuosError } from './errors.ts';
import { nearMatchHint } from './spelling.ts';

export type FlagKind = 'choice' | 'integer' | 'number' | 'boolean' | 'path';

export interface FlagDefinition {
  readonly kind: FlagKind;
  /** In the spelling of the environment; `undefined` where the default is found at run time, as `about` says. */
  readonly default?: string;
  readonly min?: number;
  readonly max?: number;
  readonly powerOfTwo?: boolean;
  readonly values?: readonly string[];
  readonly about: string;
}

export const FLAGS = {
  GPUOS_DEVICE: {
    kind: 'choice',
    values: ['auto', 'wasm', 'cuda', 'reference'],
    default: 'auto',
    about: 'The device that init() takes; `auto` takes wasm: cuda is new, and has to be asked for by its name.',
  },
  GPUOS_WORKERS: {
    kind: 'integer',
    min: 0,
    max: 255,
    about: 'Resident workers of the wasm device, beside the host. Default: one for each core but the first; 0 leaves all work to the host.',
  },
  GPUOS_MEMORY_MIB: {
    kind: 'integer',
    min: 16,
    max: 4096,
    default: '1024',
    about: 'The most memory, in MiB, that the device may use for tensors; smaller sizes are tried when it is refused.',
  },
  GPUOS_SPIN_US: {
    kind: 'number',
    min: 0,
    max: 1_000_000,
    default: '20',
    about: 'How long, in microseconds, a waiter spins before it lets the event loop turn.',
  },
  GPUOS_RING: {
    kind: 'integer',
    min: 16,
    max: 65_536,
    powerOfTwo: true,
    default: '4096',
    about: 'Slots in the ring of each queue: a power of two.',
  },
  GPUOS_TFJS: {
    kind: 'choice',
    values: ['warn', 'force'],
    default: 'warn',
    about: 'What happens when another module selects its own tfjs backend after ours: a warning, or ours is selected again.',
  },
  GPUOS_FUSE: {
    kind: 'boolean',
    default: 'true',
    about: 'Whether recorded operations are fused; `false` runs each as a task of its own.',
  },
  GPUOS_TASK_BUDGET_MS: {
    kind: 'integer',
    min: 1,
    max: 3_600_000,
    default: '10000',
    about: 'How long, in milliseconds, one task may run before it is ended with GPUOS_TASK_TIMEOUT.',
  },
  GPUOS_HOME: {
    kind: 'path',
    about: 'The folder of caches. Default: `gpuos` in `XDG_CACHE_HOME`, else in `~/.cache`.',
  },
  GPUOS_CUDA_COMPILE: {
    kind: 'choice',
    values: ['background', 'first'],
    default: 'background',
    about: 'When the cuda device compiles a fused kernel: `background` runs it interpreted meanwhile, `first` waits for the compiler.',
  },
  GPUOS_CUDA_CUBLAS: {
    kind: 'choice',
    values: ['auto', 'off', 'always'],
    default: 'auto',
    about:
      'Whether matrix products on the cuda device are done by cuBLAS, beside the resident kernel: `auto` large ones where it is found, `off` none, `always` every one that it can do, and it has to be there.',
  },
  GPUOS_CUDA_ASIDE: {
    kind: 'choice',
    values: ['auto', 'never', 'always'],
    default: 'auto',
    about:
      'Whether the resident kernel of the cuda device steps aside for products that cuBLAS does: `auto` for those that fill the GPU for long, where no other queue has tasks; `never`, they run beside it; `always`.',
  },
  GPUOS_CUDA_INJECT: {
    kind: 'choice',
    values: ['auto', 'direct', 'relaunch'],
    default: 'auto',
    about:
      'How new code gets into the running kernel of the cuda device: `direct` copies it there, `relaunch` replaces the kernel, as NVIDIA documents it; `auto` takes the first if its self-test passes.',
  },
  GPUOS_CUDA_HOME: {
    kind: 'path',
    about: 'The folder searched first for the CUDA libraries (driver, NVRTC, NVML, cuBLAS): a toolkit, or the folder that holds the files.',
  },
  GPUOS_LOG: {
    kind: 'choice',
    values: ['silent', 'error', 'warn', 'info', 'debug'],
    default: 'warn',
    about: 'The least important kind of message that the library writes to stderr.',
  },
} as const satisfies Record<string, FlagDefinition>;

export type FlagName = keyof typeof FLAGS;

/** The flags, parsed: units in the names, `undefined` where the flag is not set and has no fixed default. */
export interface Flags {
  readonly device: 'auto' | 'wasm' | 'cuda' | 'reference';
  readonly workers: number | undefined;
  readonly memoryMib: number;
  readonly spinUs: number;
  readonly ring: number;
  readonly tfjs: 'warn' | 'force';
  readonly fuse: boolean;
  readonly taskBudgetMs: number;
  readonly home: string | undefined;
  readonly cudaHome: string | undefined;
  readonly cudaCompile: 'background' | 'first';
  readonly cudaInject: 'auto' | 'direct' | 'relaunch';
  readonly cudaCublas: 'auto' | 'off' | 'always';
  readonly cudaAside: 'auto' | 'never' | 'always';
  readonly log: 'silent' | 'error' | 'warn' | 'info' | 'debug';
}

type Environment = Readonly<Record<string, string | undefined>>;

const BOOLEANS: Readonly<Record<string, boolean>> = {
  true: true,
  false: false,
  1: true,
  0: false,
  on: true,
  off: false,
  yes: true,
  no: false,
};

function bad(name: string, value: string, expected: string, hint = ''): GpuosError {
  const shown = value.length > 60 ? `${value.slice(0, 60)}...` : value;
  return new GpuosError('GPUOS_BAD_FLAG', `${name}=${shown}: expected ${expected}.${hint}`);
}

/** What a flag's value has to be, in words; also the column of `docs/flags.md`. */
export function flagRange(definition: FlagDefinition): string {
  switch (definition.kind) {
    case 'choice':
      return `one of ${(definition.values ?? []).join(', ')}`;
    case 'boolean':
      return 'true or false (also 1, 0, on, off, yes, no)';
    case 'path':
      return 'a path';
    default: {
      const noun = definition.powerOfTwo ? 'a power of two' : definition.kind === 'integer' ? 'an integer' : 'a number';
      return `${noun} from ${definition.min} to ${definition.max}`;
    }
  }
}

/** One flag's value from the environment. Throws GPUOS_BAD_FLAG. An empty value counts as not set. */
export function parseFlag(name: FlagName, text: string | undefined): string | number | boolean | undefined {
  const definition: FlagDefinition = FLAGS[name];
  const value = text === undefined || text.trim() === '' ? definition.default : text.trim();
  if (value === undefined) return undefined;
  switch (definition.kind) {
    case 'path':
      // A NUL would reach the file system as an exception without a code.
      if (value.includes('\0')) throw bad(name, value.replaceAll('\0', '\\0'), 'a path');
      return value;
    case 'choice': {
      const values = definition.values ?? [];
      if (values.includes(value)) return value;
      throw bad(name, value, flagRange(definition), nearMatchHint(value, values));
    }
    case 'boolean': {
      const parsed = Object.hasOwn(BOOLEANS, value.toLowerCase()) ? BOOLEANS[value.toLowerCase()] : undefined;
      if (parsed === undefined) throw bad(name, value, flagRange(definition));
      return parsed;
    }
    default: {
      // Decimal notation only: Number() alone would also take '', '0x10', '1e3' and 'Infinity'.
      const parsed = /^[+-]?(\d+\.?\d*|\.\d+)$/.test(value) ? Number(value) : Number.NaN;
      const whole = definition.kind === 'number' || Number.isSafeInteger(parsed);
      const inside = parsed >= (definition.min ?? -Infinity) && parsed <= (definition.max ?? Infinity);
      const power = !definition.powerOfTwo || Number.isInteger(Math.log2(parsed));
      if (!whole || !inside || !power) throw bad(name, value, flagRange(definition));
      return parsed;
    }
  }
}

/**
 * All flags of the environment, checked.
 *
 * @throws GpuosError GPUOS_UNKNOWN_FLAG for a `GPUOS_*` name that is not in the table (with the nearest one that is),
 *   GPUOS_BAD_FLAG for a value of the wrong kind or out of range.
 */
export function readFlags(environment: Environment = process.env): Flags {
  for (const name of Object.keys(environment)) {
    if (!name.startsWith('GPUOS_') || environment[name] === undefined || Object.hasOwn(FLAGS, name)) continue;
    throw new GpuosError('GPUOS_UNKNOWN_FLAG', `${name} is not a flag of gpuos.${nearMatchHint(name, Object.keys(FLAGS))}`);
  }
  const read = (name: FlagName) => parseFlag(name, environment[name]);
  return Object.freeze({
    device: read('GPUOS_DEVICE') as Flags['device'],
    workers: read('GPUOS_WORKERS') as Flags['workers'],
    memoryMib: read('GPUOS_MEMORY_MIB') as number,
    spinUs: read('GPUOS_SPIN_US') as number,
    ring: read('GPUOS_RING') as number,
    tfjs: read('GPUOS_TFJS') as Flags['tfjs'],
    fuse: read('GPUOS_FUSE') as boolean,
    taskBudgetMs: read('GPUOS_TASK_BUDGET_MS') as number,
    home: read('GPUOS_HOME') as string | undefined,
    cudaHome: read('GPUOS_CUDA_HOME') as string | undefined,
    cudaCompile: read('GPUOS_CUDA_COMPILE') as Flags['cudaCompile'],
    cudaInject: read('GPUOS_CUDA_INJECT') as Flags['cudaInject'],
    cudaCublas: read('GPUOS_CUDA_CUBLAS') as Flags['cudaCublas'],
    cudaAside: read('GPUOS_CUDA_ASIDE') as Flags['cudaAside'],
    log: read('GPUOS_LOG') as Flags['log'],
  });
}

/** Where caches live: GPUOS_HOME, else `gpuos` in the XDG cache folder. */
export function cacheFolder(home: string | undefined, environment: NodeJS.ProcessEnv = process.env): string {
  if (home !== undefined) return home;
  // The XDG specification has relative paths ignored.
  const xdg = environment['XDG_CACHE_HOME'];
  return join(xdg?.startsWith('/') ? xdg : join(homedir(), '.cache'), 'gpuos');
}
