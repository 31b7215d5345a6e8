/**
 * One thread's time for a fused chain of 100 element-wise operations with 67 distinct operands (34 add, 33 mul,
 * 33 relu), and the time to encode, compile and instantiate its module. Values are lower octiles: the machine is shared.
 * `module` repeats one module, which the engine caches; `module-new` compiles a module that it has not seen.
 *
 * usage: npx rolldown bench/probes/fused-chain.ts --platform node --format esm -o /tmp/fused-chain.mjs && node /tmp/fused-chain.mjs
 */
import { compileProgram, programSignature } from '../../src/backends/wasm/codegen/index.ts';
import type { Program, ProgramNode } from '../../src/ops/program.ts';

const OPERANDS = 67;
/** Parameters at 0, then scratch of 1 MiB, then operands. */
const SCRATCH = 65536;

function chain(first = 0): Program {
  const nodes: ProgramNode[] = [];
  let input = 0;
  const operand = () => nodes.push({ kind: 'input', input: input++, dtype: 'float32' }) - 1;
  let value = operand();
  if (first !== 0) {
    const constant = nodes.push({ kind: 'constant', value: first, dtype: 'float32' }) - 1;
    value = nodes.push({ kind: 'map', op: 'add', args: [value, constant], dtype: 'float32' }) - 1;
  }
  for (let i = 0; i < 100; i++) {
    const args = i % 3 === 2 ? [value] : [value, operand()];
    const op = i % 3 === 0 ? 'add' : i % 3 === 1 ? 'mul' : 'relu';
    value = nodes.push({ kind: 'map', op, args, dtype: 'float32' }) - 1;
  }
  return {
    inputs: Array.from({ length: input }, () => ({ dtype: 'float32', columnStride: 1 }) as const),
    scalars: 0,
    nodes,
    outputs: [{ node: value, dtype: 'float32', space: 'full' }],
    outerRank: 0,
  };
}

const lowerOctile = (samples: number[]) => samples.sort((a, b) => a - b)[samples.length >> 3] as number;
function time(repeats: number, inner: number, run: () => void): number {
  const samples: number[] = [];
  for (let r = 0; r < repeats; r++) {
    const start = performance.now();
    for (let i = 0; i < inner; i++) run();
    samples.push(((performance.now() - start) * 1000) / inner);
  }
  return lowerOctile(samples);
}
const report = (name: string, value: number) => console.log(JSON.stringify({ name, value: Math.round(value * 100) / 100, unit: 'us' }));

const program = chain();
const { bytes } = compileProgram(program);
console.error(`${program.inputs.length} inputs (${OPERANDS} operands after the first), ${bytes.length} bytes`);
report('encode', time(200, 1, () => void compileProgram(program)));
report('signature', time(200, 10, () => void programSignature(program)));
report('module', time(50, 1, () => void new WebAssembly.Module(bytes as BufferSource)));
let unseen = 0;
const modules = Array.from({ length: 60 }, () => compileProgram(chain(++unseen)).bytes);
report('module-new', time(50, 1, () => void new WebAssembly.Module(modules.pop() as BufferSource)));

const memory = new WebAssembly.Memory({ initial: 512, maximum: 65536, shared: true });
const module = new WebAssembly.Module(bytes as BufferSource);
report('instantiate', time(50, 1, () => void new WebAssembly.Instance(module, { env: { memory } })));

const run = new WebAssembly.Instance(module, { env: { memory } }).exports['f'] as (p: number, tile: number, tiles: number, scratch: number) => number;
const words = new Int32Array(memory.buffer);
const floats = new Float32Array(memory.buffer);
for (const pad of [0, 1]) {
  for (const size of [1024, 16384]) {
    const stride = size * 4 + pad * 64 * 5;
    const base = 2 << 20;
    for (let i = 0; i <= program.inputs.length; i++) words[2 * i] = base + i * stride;
    words[2 * (program.inputs.length + 1)] = size;
    for (let i = base >> 2; i < (base + program.inputs.length * stride) >> 2; i++) floats[i] = 0.9 + ((i * 7919) % 1000) / 5000;
    for (let i = 0; i < 3000; i++) run(0, 0, 1, SCRATCH);
    report(`run-${size}${pad ? '-padded' : ''}`, time(200, 20, () => void run(0, 0, 1, SCRATCH)));
  }
}
