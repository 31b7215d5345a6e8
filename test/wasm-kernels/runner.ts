/**
 * Runs kernels of the wasm device without the executor: compiles `device/operators` alone, lays operands out in memory
 * between guard zones, fills the parameter block as the runtime would, and calls every tile in turn.
 */
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import asc from 'assemblyscript/asc';
import { expect } from 'vitest';
import type { KernelCall, OperandView } from '../../src/backends/backend.ts';
import { referenceRun } from '../../src/backends/reference/index.ts';
import { acceptsStrides, lower, type MatmulOptions } from '../../src/backends/lowering/index.ts';
import { checkAttributes } from '../../src/ops/attributes.ts';
import type { Attributes, DType, Shape, TensorSpec } from '../../src/ops/define.ts';
import { elementBytes } from '../../src/ops/dtype.ts';
import { type HostTensor, hostData, hostTensor } from '../../src/ops/host-tensor.ts';
import { operatorByName } from '../../src/ops/index.ts';
import { elementCount, strides as contiguousStrides } from '../../src/ops/shape.ts';

const OPERATORS = fileURLToPath(new URL('../../src/backends/wasm/device/operators/', import.meta.url));

/** The compiled module, kept between runs under a hash of its sources. */
async function compileOperators(): Promise<Uint8Array<ArrayBuffer>> {
  const hash = createHash('sha256');
  for (const name of readdirSync(OPERATORS).sort()) if (name.endsWith('.ts')) hash.update(name).update(readFileSync(OPERATORS + name));
  const folder = join(tmpdir(), 'gpuos-kernel-tests');
  const file = join(folder, `${hash.digest('hex').slice(0, 32)}.wasm`);
  if (existsSync(file)) return Uint8Array.from(readFileSync(file));
  let module: Uint8Array | undefined;
  let text = '';
  const { error } = await asc.main(
    [
      join(OPERATORS, 'index.ts'),
      '--outFile',
      'operators.wasm',
      '--runtime',
      'stub',
      '-O3',
      '--importMemory',
      '--sharedMemory',
      '--initialMemory',
      '1',
      '--maximumMemory',
      '65536',
      '--enable',
      'threads,simd,bulk-memory',
    ],
    {
      readFile: (name, base) => {
        const path = name.startsWith('/') ? name : join(base, name);
        return existsSync(path) ? readFileSync(path, 'utf8') : null;
      },
      writeFile: (_, contents) => {
        if (typeof contents !== 'string') module = contents;
      },
      stderr: {
        write: (chunk) => {
          text += String(chunk);
          return true;
        },
      },
    },
  );
  if (error || !module) throw new Error(text, { cause: error });
  mkdirSync(folder, { recursive: true });
  const temporary = `${file}.${process.pid}`;
  writeFileSync(temporary, module);
  renameSync(temporary, file);
  return Uint8Array.from(module);
}

const PAGES = 1024;
const PARAMS = 4096;
const SCRATCH = 1 << 20;
const SCRATCH_BYTES = 1 << 20;
const HEAP = SCRATCH + SCRATCH_BYTES + 4096;
const GUARD = 0x5afe6a2d;
const GUARD_WORDS = 64;

const memory = new WebAssembly.Memory({ initial: PAGES, maximum: 65536, shared: true });
const module = await WebAssembly.compile(await compileOperators());
const instance = await WebAssembly.instantiate(module, { env: { memory } });
export const kernels = instance.exports as Record<string, (params: number, tile: number, tiles: number, scratch: number) => number>;
const words = new Int32Array(memory.buffer);

/** A tensor as it lies in memory: its view, and the words of the storage that the view looks into. */
export interface Placed {
  readonly view: OperandView;
  readonly storage: Int32Array;
}

function bitsOf(tensor: HostTensor): Int32Array {
  return tensor.data instanceof Float32Array
    ? new Int32Array(tensor.data.buffer, tensor.data.byteOffset, tensor.data.length)
    : Int32Array.from(tensor.data);
}

/** The tensor as contiguous storage. */
export function dense(tensor: HostTensor): Placed {
  return {
    view: { shape: tensor.shape, dtype: tensor.dtype, strides: contiguousStrides(tensor.shape), offset: 0 },
    storage: bitsOf(tensor),
  };
}

/**
 * The tensor's values in storage of another order: dimension order[i] is i-th outermost in memory, every dimension is
 * `gap` elements longer than it needs to be, and those in `reversed` run backwards.
 */
export function scattered(tensor: HostTensor, order: readonly number[], gap: number, reversed: readonly boolean[]): Placed {
  const strides = new Array<number>(tensor.shape.length).fill(0);
  let size = 1;
  let offset = 0;
  for (const d of [...order].reverse()) {
    const extent = tensor.shape[d] as number;
    strides[d] = reversed[d] ? -size : size;
    if (reversed[d]) offset += size * Math.max(0, extent - 1);
    size *= extent + gap;
  }
  const storage = new Int32Array(size).fill(0x7fc00bad); // a NaN where nothing should be read
  const bits = bitsOf(tensor);
  const own = contiguousStrides(tensor.shape);
  for (let flat = 0; flat < bits.length; flat++) {
    let at = offset;
    for (let d = 0; d < own.length; d++)
      at += (Math.floor(flat / (own[d] as number)) % (tensor.shape[d] as number)) * (strides[d] as number);
    storage[at] = bits[flat] as number;
  }
  return { view: { shape: tensor.shape, dtype: tensor.dtype, strides, offset }, storage };
}

function contiguousView(spec: TensorSpec): OperandView {
  return { shape: spec.shape, dtype: spec.dtype, strides: contiguousStrides(spec.shape), offset: 0 };
}

export interface Outcome {
  readonly status: number;
  readonly outputs: Int32Array[];
}

/**
 * Runs a call in `tiles` tiles. Outputs start as garbage of `outputWords` words each. Checks that inputs, the zones around
 * all operands and the words around the scratch keep their values.
 */
export function execute(call: KernelCall, inputs: readonly Placed[], outputWords: readonly number[], tiles: number): Outcome {
  const guards: number[] = [];
  const guard = (at: number) => {
    words.fill(GUARD, at >> 2, (at >> 2) + GUARD_WORDS);
    guards.push(at >> 2);
    return at + GUARD_WORDS * 4;
  };
  guard(SCRATCH - GUARD_WORDS * 4);
  guard(SCRATCH + SCRATCH_BYTES);
  // What a task left in scratch must not matter.
  words.fill(0x7fc0dead, SCRATCH >> 2, (SCRATCH + SCRATCH_BYTES) >> 2);
  let heap = guard(HEAP);
  const place = (count: number) => {
    const at = heap;
    heap = guard(at + count * 4);
    if (heap > PAGES * 65536) throw new Error('the operands of this test are too large for its memory');
    return at;
  };
  const starts = inputs.map(({ storage }) => {
    const at = place(storage.length);
    words.set(storage, at >> 2);
    return at;
  });
  const results = outputWords.map((count) => {
    const at = place(count);
    words.fill(0x7fc0beef, at >> 2, (at >> 2) + count);
    return at;
  });

  const block = PARAMS >> 2;
  words.fill(0x0bad0bad, block, (SCRATCH - GUARD_WORDS * 4) >> 2);
  call.pointers.forEach((pointer, i) => {
    const input = 'input' in pointer ? pointer.input : -1;
    words[block + 2 * i] =
      'output' in pointer
        ? (results[pointer.output] as number)
        : input >= 0
          ? (starts[input] as number) + (inputs[input] as Placed).view.offset * elementBytes((inputs[input] as Placed).view.dtype)
          : 0;
    words[block + 2 * i + 1] = 0;
  });
  const first = block + 2 * Math.max(4, call.pointers.length);
  expect(
    call.words.every((word) => word === (word | 0)),
    'words are of 32 bits',
  ).toBe(true);
  expect(call.units).toBe(call.words[0]);
  expect(call.costNs).toBeGreaterThan(0);
  words.set(call.words, first);

  const kernel = kernels[call.kernel];
  if (!kernel) throw new Error(`there is no kernel ${call.kernel}`);
  let status = 0;
  for (let tile = 0; tile < tiles; tile++) status = kernel(PARAMS, tile, tiles, SCRATCH) || status;

  for (const at of guards) {
    for (let i = at; i < at + GUARD_WORDS; i++)
      if (words[i] !== GUARD) expect.fail(`the guard word at ${i * 4} was overwritten by ${call.kernel}`);
  }
  for (const [i, { storage }] of inputs.entries()) {
    const at = (starts[i] as number) >> 2;
    for (let j = 0; j < storage.length; j++) {
      if (words[at + j] !== storage[j]) expect.fail(`word ${j} of input ${i} was overwritten by ${call.kernel}`);
    }
  }
  return { status, outputs: results.map((at, i) => words.slice(at >> 2, (at >> 2) + (outputWords[i] as number))) };
}

/** Raw words of an output as a tensor. */
export function asTensor(spec: TensorSpec, bits: Int32Array): HostTensor {
  if (spec.dtype === 'float32') return { ...spec, data: new Float32Array(bits.buffer, bits.byteOffset, bits.length) };
  const data = hostData(spec.dtype, bits.length);
  data.set(bits);
  return { ...spec, data };
}

export interface Tolerance {
  readonly absolute: number;
  readonly relative: number;
}
export const EXACT: Tolerance = { absolute: 0, relative: 0 };

export function expectClose(actual: ArrayLike<number>, expected: ArrayLike<number>, { absolute, relative }: Tolerance, what = ''): void {
  expect(actual.length).toBe(expected.length);
  for (let i = 0; i < expected.length; i++) {
    const [a, e] = [actual[i] as number, expected[i] as number];
    // 0 and -0 are equal; so are two NaN.
    if (a === e || (Number.isNaN(a) && Number.isNaN(e)) || Math.abs(a - e) <= absolute + relative * Math.abs(e)) continue;
    expect.fail(`${what} element ${i} is ${a}, not ${e}`);
  }
}

export interface ConformOptions {
  readonly tolerance?: Tolerance;
  /** How to lay out the inputs; by default contiguous. Only inputs whose strides the kernel accepts are laid out otherwise. */
  readonly layout?: (tensor: HostTensor, input: number) => Placed;
  readonly matmul?: MatmulOptions;
  /** Whether the number of tiles may change the order in which floats are added, and so the last bits. */
  readonly reorders?: boolean;
}

/** Runs an operator in 1 to 5 tiles and holds each result to the reference. */
export function conform(name: string, inputs: readonly HostTensor[], attributes: Attributes = {}, options: ConformOptions = {}): void {
  const definition = operatorByName(name);
  const filled = checkAttributes(definition, attributes);
  const specs = definition.infer(inputs, filled);
  const expected = referenceRun(name, inputs, attributes);
  const layout = options.layout ?? dense;
  const placed = inputs.map((input, i) => (acceptsStrides(name, i) ? layout(input, i) : dense(input)));
  const call = lower(
    name,
    placed.map(({ view }) => view),
    specs.map(contiguousView),
    filled,
    options.matmul,
  );
  let first: Outcome | undefined;
  for (let tiles = 1; tiles <= 5; tiles++) {
    const outcome = execute(
      call,
      placed,
      specs.map(({ shape }) => elementCount(shape)),
      tiles,
    );
    expect(outcome.status, `status of ${name}`).toBe(0);
    for (const [i, spec] of specs.entries()) {
      const what = `${name}, output ${i}, ${tiles} tiles:`;
      expectClose(
        asTensor(spec, outcome.outputs[i] as Int32Array).data,
        (expected[i] as HostTensor).data,
        options.tolerance ?? EXACT,
        what,
      );
    }
    first ??= outcome;
    if (options.reorders) continue;
    for (const [i, bits] of outcome.outputs.entries()) {
      const wrong = bits.findIndex((word, j) => word !== first?.outputs[i]?.[j]);
      expect(wrong, `element of output ${i} of ${name} that differs in ${tiles} tiles`).toBe(-1);
    }
  }
}

/** Runs an operator in 1 to 5 tiles and gives the statuses that it ends with; guard zones are checked as always. */
export function statuses(name: string, inputs: readonly HostTensor[], attributes: Attributes = {}): number[] {
  const definition = operatorByName(name);
  const filled = checkAttributes(definition, attributes);
  const specs = definition.infer(inputs, filled);
  const placed = inputs.map(dense);
  const call = lower(
    name,
    placed.map(({ view }) => view),
    specs.map(contiguousView),
    filled,
  );
  const counts = specs.map(({ shape }) => elementCount(shape));
  return [1, 2, 3, 4, 5].map((tiles) => execute(call, placed, counts, tiles).status);
}

/** A repeatable source of numbers in [0, 1) (mulberry32). */
export function randomSource(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A tensor of values in [-1, 1), or of small integers, or of booleans. */
export function randomTensor(random: () => number, shape: Shape, dtype: DType = 'float32'): HostTensor {
  const value =
    dtype === 'float32'
      ? () => random() * 2 - 1
      : dtype === 'int32'
        ? () => Math.floor(random() * 2001) - 1000
        : () => Math.floor(random() * 2);
  return hostTensor(shape, Array.from({ length: elementCount(shape) }, value), dtype);
}

/** An int32 tensor of indices below `size`. */
export function randomIndices(random: () => number, shape: Shape, size: number): HostTensor {
  return hostTensor(
    shape,
    Array.from({ length: elementCount(shape) }, () => Math.floor(random() * size)),
    'int32',
  );
}

/** Lays tensors out in a random order of dimensions, with gaps and reversals. */
export function randomLayout(random: () => number): (tensor: HostTensor) => Placed {
  return (tensor) => {
    const order = tensor.shape.map((_, d) => d);
    for (let i = order.length - 1; i > 0; i--) {
      const j = Math.floor(random() * (i + 1));
      [order[i], order[j]] = [order[j] as number, order[i] as number];
    }
    // Half of the layouts keep the innermost dimension, as real ones do.
    if (random() < 0.5) order.sort((a, b) => Number(a === order.length - 1) - Number(b === order.length - 1));
    return scattered(
      tensor,
      order,
      Math.floor(random() * 3),
      order.map(() => random() < 0.2),
    );
  };
}
