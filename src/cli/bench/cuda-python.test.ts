import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { childrenOf } from './cuda-fault.ts';
import { Baseline, decodeFloats, encodeFloats } from './cuda-python.ts';

const LIMIT_MS = 20_000;

/** A program in the place of python3. */
const program = (body: string): string[] => [process.execPath, '--input-type=module', '-e', body];
const ECHO = `
  import { createInterface } from 'node:readline';
  const answer = (message) => process.stdout.write(JSON.stringify(message) + '\\n');
  answer({ torch: '0.0' });
  for await (const line of createInterface({ input: process.stdin })) {
    const ask = JSON.parse(line);
    if (ask.do === 'hang') await new Promise(() => setInterval(() => {}, 1000));
    if (ask.do === 'die') process.exit(3);
    if (ask.do === 'babble') process.stdout.write('hello\\n');
    else answer(ask.do === 'fail' ? { error: 'ValueError: no' } : { was: ask.value });
  }`;

let baseline: Baseline | undefined;
afterEach(async () => {
  await baseline?.stop();
  baseline = undefined;
  expect(childrenOf(process.pid)).toEqual([]);
});

describe('a process that is asked', () => {
  it('answers one request after another, and goes on after one that failed', async () => {
    baseline = await Baseline.start(program(ECHO), LIMIT_MS);
    expect(baseline.version).toBe('0.0');
    const long = 'x'.repeat(200_000);
    expect(await baseline.ask({ do: 'echo', value: long }, LIMIT_MS)).toEqual({ was: long });
    await expect(baseline.ask({ do: 'fail' }, LIMIT_MS)).rejects.toThrow(/fail.*ValueError: no/);
    expect(await baseline.ask({ do: 'echo', value: 2 }, LIMIT_MS)).toEqual({ was: 2 });
  });

  it.each([
    ['hang', 300, /longer than 0.3 s \(hang\)/],
    ['die', LIMIT_MS, /exit code 3/],
    ['babble', LIMIT_MS, /something else than an answer: hello/],
  ])('that should %s is an error, and later requests fail too', async (what, limit, message) => {
    baseline = await Baseline.start(program(ECHO), LIMIT_MS);
    await expect(baseline.ask({ do: what }, limit)).rejects.toMatchObject({
      code: 'GPUOS_BASELINE_UNAVAILABLE',
      message: expect.stringMatching(message),
    });
    if (what !== 'babble') await expect(baseline.ask({ do: 'echo' }, LIMIT_MS)).rejects.toThrow(/it ended/);
  });

  it('that is not there, or does not start, is an error', async () => {
    await expect(Baseline.start(['no-such-program'], LIMIT_MS)).rejects.toThrow(/cannot be started.*ENOENT/);
    await expect(Baseline.start(program('process.exit(1)'), LIMIT_MS)).rejects.toThrow(/exit code 1/);
    await expect(Baseline.start(program('setInterval(() => {}, 1000)'), 200)).rejects.toThrow(/longer than 0.2 s/);
    await vi.waitFor(() => expect(childrenOf(process.pid)).toEqual([]));
  });
});

it('floats travel as they are', () => {
  fc.assert(
    fc.property(fc.float32Array(), (values) => {
      expect(decodeFloats(encodeFloats(values))).toEqual(values);
    }),
  );
});

/** As much of PyTorch as the script uses, on the CPU and on lists: add, mul and relu are right, gelu is the identity. */
const TORCH = `
import array
class Tensor:
    def __init__(self, values): self.values = array.array('f', values)
    def __add__(self, other): return Tensor(a + b for a, b in zip(self.values, other.values))
    def __mul__(self, scalar): return Tensor(a * scalar for a in self.values)
    def cuda(self): return self
    def cpu(self): return self
    def numpy(self): return self.values
    def item(self): return self.values[0]
float16 = 'f2'
float32 = 'f'
__version__ = '9.9'
def relu(x): return Tensor(max(a, 0) for a in x.values)
class functional: gelu = staticmethod(lambda x: x)
class nn: pass
nn.functional = functional
def frombuffer(data, dtype):
    values = array.array('f'); values.frombytes(bytes(data)); return Tensor(values)
def zeros(*shape, **options): return Tensor([0] * shape[0])
randn = zeros
empty = zeros
def mm(a, b, out): out.values = a.values
def compile(function): return function
def set_grad_enabled(value): pass
class Stream:
    def wait_stream(self, other): pass
class Block:
    def __init__(self, *given): pass
    def __enter__(self): return self
    def __exit__(self, *rest): pass
class CUDAGraph:
    def replay(self): pass
class cuda:
    Stream = Stream
    CUDAGraph = CUDAGraph
    stream = Block
    graph = Block
    current_stream = staticmethod(Stream)
    synchronize = staticmethod(lambda: None)
    get_device_name = staticmethod(lambda n: 'none')
print('noise of a library')
`;
const python = spawnSync('python3', ['--version']).status === 0;

describe.skipIf(!python)('cuda-baseline.py, with a stand-in for torch (needs python3)', () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'gpuos-bench-'));
    mkdirSync(join(folder, 'torch'));
    writeFileSync(join(folder, 'torch/__init__.py'), TORCH);
    vi.stubEnv('PYTHONPATH', folder);
    vi.stubEnv('PYTHONDONTWRITEBYTECODE', '1');
  });
  afterAll(() => {
    vi.unstubAllEnvs();
    rmSync(folder, { recursive: true });
  });

  it('computes the chain in each mode, and gives as many times as it was asked for', async () => {
    baseline = await Baseline.start(undefined, LIMIT_MS);
    expect(baseline.version).toBe('9.9');
    const [x, b] = [Float32Array.of(1, -2, 3), Float32Array.of(0.5, 0.25, -4)];
    await baseline.ask({ do: 'load', n: 3, x: encodeFloats(x), b: encodeFloats(b) }, LIMIT_MS);
    const expected = x.map((value, i) => {
      let result = value;
      for (let step = 0; step < 25; step++) result = Math.max(Math.fround(Math.fround(result + b[i]!) * 0.99), 0);
      return result;
    });
    for (const mode of ['eager', 'graph', 'compile']) {
      const values = decodeFloats((await baseline.ask({ do: 'result', n: 3, mode }, LIMIT_MS))['values']);
      for (const [i, value] of expected.entries()) expect(values[i]).toBeCloseTo(value, 4);
      const { us, read_us: read } = await baseline.ask({ do: 'chain', n: 3, mode, calls: 4 }, LIMIT_MS);
      expect([(us as number[]).length, (read as number[]).length]).toEqual([4, 4]);
    }
    const { us } = await baseline.ask({ do: 'lengths', lengths: [1, 2, 3] }, LIMIT_MS);
    expect((us as number[]).length).toBe(3);
    expect((us as number[]).every((time) => time > 0)).toBe(true);
    expect((await baseline.ask({ do: 'matmul', n: 4, seconds: 0 }, LIMIT_MS))['us']).toBeGreaterThan(0);
    await expect(baseline.ask({ do: 'nothing' }, LIMIT_MS)).rejects.toThrow(/KeyError/);
  });
});
