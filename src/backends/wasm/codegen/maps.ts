import { GpuosError } from '../../../errors.ts';
import type { ComputeType } from '../../../ops/dtype.ts';
import { SELU_ALPHA, SELU_LAMBDA } from '../../../ops/map.ts';
import type { MapName, RoundName } from '../../../ops/program.ts';
import type { FunctionBuilder } from '../encoder/function-builder.ts';
import type { FunctionDefinition } from '../encoder/module-builder.ts';
import { SIMD } from '../encoder/opcodes.ts';
import * as double from './double-precision.ts';
import * as exponentials from './exponentials.ts';
import { ROUND_COST, roundToHalf } from './half.ts';
import { INT_FLOOR_DIV, INT_MOD, INT_POW } from './integers.ts';

/**
 * Every element-wise operation as a sequence of vector instructions: takes the locals of its arguments and
 * leaves four lanes on the stack. A bool lives in a vector as a mask (0 or -1) and becomes 0 or 1 in memory.
 */
export interface MapEmitter {
  readonly emit: (f: FunctionBuilder, a: number, b: number, c: number) => void;
  /** About the number of instructions: what unrolling and recomputing are weighed by. */
  readonly cost: number;
}

const ABS_BITS = 0x7fffffff;
const INFINITY_BITS = 0x7f800000;

const unary = (opcode: number): MapEmitter => ({ cost: 1, emit: (f, a) => f.get(a).simd(opcode) });
const binary = (opcode: number): MapEmitter => ({ cost: 1, emit: (f, a, b) => f.get(a).get(b).simd(opcode) });
const swapped = (opcode: number): MapEmitter => ({ cost: 1, emit: (f, a, b) => f.get(b).get(a).simd(opcode) });
const inline = (cost: number, emit: MapEmitter['emit']): MapEmitter => ({ cost, emit });
const call1 = (cost: number, definition: FunctionDefinition): MapEmitter => ({ cost, emit: (f, a) => f.get(a).call(definition) });
const call2 = (cost: number, definition: FunctionDefinition): MapEmitter => ({ cost, emit: (f, a, b) => f.get(a).get(b).call(definition) });
const not = (opcode: number): MapEmitter => ({ cost: 2, emit: (f, a, b) => f.get(a).get(b).simd(opcode).simd(SIMD.not) });

const select = inline(1, (f, condition, a, b) => f.get(a).get(b).get(condition).simd(SIMD.bitselect));
type Table = Partial<Record<MapName | RoundName, MapEmitter>>;

const FLOAT32: Table = {
  select,
  add: binary(SIMD.f32x4Add),
  sub: binary(SIMD.f32x4Sub),
  mul: binary(SIMD.f32x4Mul),
  div: binary(SIMD.f32x4Div),
  'floor-div': inline(4, (f, a, b) => f.get(a).get(b).simd(SIMD.f32x4Div).simd(SIMD.f32x4Floor)),
  mod: call2(60, double.MOD),
  maximum: binary(SIMD.f32x4Max),
  minimum: binary(SIMD.f32x4Min),
  pow: call2(150, double.POW),
  'squared-difference': inline(2, (f, a, b) => {
    const difference = f.vector();
    f.get(a).get(b).simd(SIMD.f32x4Sub).tee(difference).get(difference).simd(SIMD.f32x4Mul);
    f.release(difference);
  }),
  atan2: call2(100, double.ATAN2),
  prelu: inline(4, (f, x, alpha) => f.get(x).get(alpha).simd(SIMD.f32x4Mul).get(x).get(x).splat(0).simd(SIMD.f32x4Lt).simd(SIMD.bitselect)),
  equal: binary(SIMD.f32x4Eq),
  'not-equal': binary(SIMD.f32x4Ne),
  less: binary(SIMD.f32x4Lt),
  'less-equal': binary(SIMD.f32x4Le),
  greater: binary(SIMD.f32x4Gt),
  'greater-equal': binary(SIMD.f32x4Ge),
  neg: unary(SIMD.f32x4Neg),
  abs: unary(SIMD.f32x4Abs),
  sign: inline(6, (f, x) => {
    f.get(x).splat(0).simd(SIMD.f32x4Gt).splat(1).simd(SIMD.and);
    f.get(x).splat(0).simd(SIMD.f32x4Lt).splat(-1).simd(SIMD.and).simd(SIMD.or);
  }),
  exp: inline(30, (f, x) => exponentials.exp(f, x)),
  expm1: inline(30, exponentials.expm1),
  log: inline(40, exponentials.log),
  log1p: inline(40, exponentials.log1p),
  sqrt: inline(5, (f, x) => f.get(x).simd(SIMD.f32x4Sqrt)),
  rsqrt: inline(8, (f, x) => f.splat(1).get(x).simd(SIMD.f32x4Sqrt).simd(SIMD.f32x4Div)),
  square: inline(1, (f, x) => f.get(x).get(x).simd(SIMD.f32x4Mul)),
  reciprocal: inline(4, (f, x) => f.splat(1).get(x).simd(SIMD.f32x4Div)),
  floor: unary(SIMD.f32x4Floor),
  ceil: unary(SIMD.f32x4Ceil),
  round: unary(SIMD.f32x4Nearest),
  erf: inline(65, exponentials.erf),
  tanh: inline(38, exponentials.tanh),
  sigmoid: inline(37, exponentials.sigmoid),
  softplus: inline(70, exponentials.softplus),
  sin: call1(100, double.SIN),
  cos: call1(100, double.COS),
  tan: call1(100, double.TAN),
  asin: call1(100, double.ASIN),
  acos: call1(100, double.ACOS),
  atan: call1(80, double.ATAN),
  sinh: call1(90, double.SINH),
  cosh: call1(80, double.COSH),
  asinh: call1(110, double.ASINH),
  acosh: call1(100, double.ACOSH),
  atanh: call1(100, double.ATANH),
  relu: inline(1, (f, x) => f.get(x).splat(0).simd(SIMD.f32x4Pmax)),
  relu6: inline(2, (f, x) => f.get(x).splat(0).simd(SIMD.f32x4Pmax).splat(6).simd(SIMD.f32x4Pmin)),
  elu: inline(33, (f, x) => exponentials.elu(f, x, 1, 1)),
  selu: inline(35, (f, x) => exponentials.elu(f, x, SELU_LAMBDA, SELU_ALPHA)),
  gelu: inline(65, exponentials.gelu),
  'gelu-tanh': inline(43, exponentials.geluTanh),
  silu: inline(38, exponentials.silu),
  'round-float16': inline(ROUND_COST, (f, x) => roundToHalf(f, x, 'float16')),
  'round-bfloat16': inline(ROUND_COST / 2, (f, x) => roundToHalf(f, x, 'bfloat16')),
  'is-nan': inline(1, (f, x) => f.get(x).get(x).simd(SIMD.f32x4Ne)),
  'is-inf': inline(2, (f, x) => f.get(x).splatBits(ABS_BITS).simd(SIMD.and).splatBits(INFINITY_BITS).simd(SIMD.i32x4Eq)),
  'is-finite': inline(2, (f, x) => f.get(x).splatBits(ABS_BITS).simd(SIMD.and).splatBits(INFINITY_BITS).simd(SIMD.i32x4LtS)),
};

const INT32: Table = {
  select,
  add: binary(SIMD.i32x4Add),
  sub: binary(SIMD.i32x4Sub),
  mul: binary(SIMD.i32x4Mul),
  'floor-div': call2(20, INT_FLOOR_DIV),
  mod: call2(25, INT_MOD),
  maximum: binary(SIMD.i32x4MaxS),
  minimum: binary(SIMD.i32x4MinS),
  pow: call2(80, INT_POW),
  'squared-difference': inline(2, (f, a, b) => {
    const difference = f.vector();
    f.get(a).get(b).simd(SIMD.i32x4Sub).tee(difference).get(difference).simd(SIMD.i32x4Mul);
    f.release(difference);
  }),
  equal: binary(SIMD.i32x4Eq),
  'not-equal': binary(SIMD.i32x4Ne),
  less: binary(SIMD.i32x4LtS),
  'less-equal': binary(SIMD.i32x4LeS),
  greater: binary(SIMD.i32x4GtS),
  'greater-equal': binary(SIMD.i32x4GeS),
  neg: unary(SIMD.i32x4Neg),
  abs: unary(SIMD.i32x4Abs),
  sign: inline(3, (f, x) => f.get(x).splatBits(0).simd(SIMD.i32x4LtS).get(x).splatBits(0).simd(SIMD.i32x4GtS).simd(SIMD.i32x4Sub)),
  square: inline(1, (f, x) => f.get(x).get(x).simd(SIMD.i32x4Mul)),
  relu: inline(1, (f, x) => f.get(x).splatBits(0).simd(SIMD.i32x4MaxS)),
};

/** On masks; false is below true. */
const BOOL: Table = {
  select,
  'logical-and': binary(SIMD.and),
  'logical-or': binary(SIMD.or),
  'logical-xor': binary(SIMD.xor),
  'logical-not': unary(SIMD.not),
  equal: not(SIMD.xor),
  'not-equal': binary(SIMD.xor),
  greater: binary(SIMD.andnot),
  less: swapped(SIMD.andnot),
  'less-equal': { cost: 2, emit: (f, a, b) => f.get(a).get(b).simd(SIMD.andnot).simd(SIMD.not) },
  'greater-equal': { cost: 2, emit: (f, a, b) => f.get(b).get(a).simd(SIMD.andnot).simd(SIMD.not) },
};

const TABLES: Readonly<Record<ComputeType, Table>> = { float32: FLOAT32, int32: INT32, bool: BOOL };

const CASTS: Readonly<Record<ComputeType, Readonly<Record<ComputeType, MapEmitter>>>> = {
  float32: {
    float32: inline(0, (f, a) => f.get(a)),
    int32: inline(8, (f, a) => f.get(a).simd(SIMD.i32x4TruncSatF32x4S)),
    bool: inline(1, (f, a) => f.get(a).splat(0).simd(SIMD.f32x4Ne)),
  },
  int32: {
    float32: unary(SIMD.f32x4ConvertI32x4S),
    int32: inline(0, (f, a) => f.get(a)),
    bool: inline(1, (f, a) => f.get(a).splatBits(0).simd(SIMD.i32x4Ne)),
  },
  bool: {
    float32: inline(1, (f, a) => f.get(a).splat(1).simd(SIMD.and)),
    int32: inline(1, (f, a) => f.get(a).splatBits(1).simd(SIMD.and)),
    bool: inline(0, (f, a) => f.get(a)),
  },
};

/** The emitter of an operation on operands of a dtype (of select: the dtype of what it selects from). */
export function mapEmitter(op: MapName | RoundName, operand: ComputeType, result: ComputeType): MapEmitter {
  const emitter = op === 'cast' ? CASTS[operand][result] : TABLES[operand][op];
  if (emitter === undefined) throw new GpuosError('GPUOS_INTERNAL', `No vector code for ${op} of ${operand}.`);
  return emitter;
}
