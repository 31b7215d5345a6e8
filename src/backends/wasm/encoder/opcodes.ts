/** Value types, as they are encoded. */
export const I32 = 0x7f;
export const I64 = 0x7e;
export const F32 = 0x7d;
export const F64 = 0x7c;
export const V128 = 0x7b;
export type ValueType = typeof I32 | typeof I64 | typeof F32 | typeof F64 | typeof V128;
/** The type of a block without a result. */
export const EMPTY = 0x40;

/** Instructions of one byte and without an immediate, but for those that FunctionBuilder has a method for. */
// biome-ignore format: a table, by group
export const OP = {
  unreachable: 0x00, else: 0x05, end: 0x0b, return: 0x0f, drop: 0x1a, select: 0x1b,
  i32Eqz: 0x45, i32Eq: 0x46, i32Ne: 0x47, i32LtS: 0x48, i32LtU: 0x49, i32GtS: 0x4a, i32GtU: 0x4b,
  i32LeS: 0x4c, i32LeU: 0x4d, i32GeS: 0x4e, i32GeU: 0x4f,
  i64Eqz: 0x50, i64Ne: 0x52, i64LtS: 0x53,
  f64Lt: 0x63, f64Ge: 0x66,
  i32Clz: 0x67, i32Add: 0x6a, i32Sub: 0x6b, i32Mul: 0x6c, i32DivS: 0x6d, i32DivU: 0x6e, i32RemS: 0x6f, i32RemU: 0x70,
  i32And: 0x71, i32Or: 0x72, i32Xor: 0x73, i32Shl: 0x74, i32ShrS: 0x75, i32ShrU: 0x76,
  i64Add: 0x7c, i64Sub: 0x7d, i64Mul: 0x7e, i64DivU: 0x80, i64And: 0x83, i64Or: 0x84, i64Shl: 0x86, i64ShrS: 0x87, i64ShrU: 0x88,
  f64Abs: 0x99, f64Neg: 0x9a, f64Add: 0xa0, f64Sub: 0xa1, f64Mul: 0xa2,
  i32WrapI64: 0xa7, i64ReinterpretF64: 0xbd, i64ExtendI32S: 0xac, i64ExtendI32U: 0xad, f64ConvertI32S: 0xb7, f64ConvertI64S: 0xb9, f64PromoteF32: 0xbb,
} as const;

/** SIMD instructions, after the prefix 0xfd (WebAssembly core specification 2.0, section 5.4.9). */
// biome-ignore format: a table, by group
export const SIMD = {
  load: 0x00, load16x4U: 0x04, load32Splat: 0x09, store: 0x0b, const: 0x0c, shuffle: 0x0d,
  i32x4Splat: 0x11, i64x2Splat: 0x12, f32x4Splat: 0x13, f64x2Splat: 0x14,
  i32x4ExtractLane: 0x1b, i32x4ReplaceLane: 0x1c, i64x2ReplaceLane: 0x1e, f32x4ExtractLane: 0x1f, f64x2ExtractLane: 0x21, f64x2ReplaceLane: 0x22,
  i32x4Eq: 0x37, i32x4Ne: 0x38, i32x4LtS: 0x39, i32x4GtS: 0x3b, i32x4LeS: 0x3d, i32x4GeS: 0x3f,
  f32x4Eq: 0x41, f32x4Ne: 0x42, f32x4Lt: 0x43, f32x4Gt: 0x44, f32x4Le: 0x45, f32x4Ge: 0x46,
  f64x2Eq: 0x47, f64x2Ne: 0x48, f64x2Lt: 0x49, f64x2Gt: 0x4a, f64x2Le: 0x4b, f64x2Ge: 0x4c,
  not: 0x4d, and: 0x4e, andnot: 0x4f, or: 0x50, xor: 0x51, bitselect: 0x52, anyTrue: 0x53,
  load16Lane: 0x55, load32Lane: 0x56, store16Lane: 0x59, store32Lane: 0x5a, store64Lane: 0x5b, load32Zero: 0x5c, f32x4DemoteF64x2Zero: 0x5e, f64x2PromoteLowF32x4: 0x5f,
  i16x8NarrowI32x4U: 0x86,
  f32x4Ceil: 0x67, f32x4Floor: 0x68, f32x4Trunc: 0x69, f32x4Nearest: 0x6a, f64x2Floor: 0x75, f64x2Trunc: 0x7a, f64x2Nearest: 0x94,
  i32x4Abs: 0xa0, i32x4Neg: 0xa1, i32x4AllTrue: 0xa3, i32x4Shl: 0xab, i32x4ShrS: 0xac, i32x4ShrU: 0xad, i32x4Add: 0xae, i32x4Sub: 0xb1,
  i32x4Mul: 0xb5, i32x4MinS: 0xb6, i32x4MaxS: 0xb8,
  i64x2ExtendLowI32x4S: 0xc7, i64x2Shl: 0xcb, i64x2ShrS: 0xcc, i64x2ShrU: 0xcd, i64x2Add: 0xce, i64x2Sub: 0xd1,
  f32x4Abs: 0xe0, f32x4Neg: 0xe1, f32x4Sqrt: 0xe3, f32x4Add: 0xe4, f32x4Sub: 0xe5, f32x4Mul: 0xe6, f32x4Div: 0xe7,
  f32x4Min: 0xe8, f32x4Max: 0xe9, f32x4Pmin: 0xea, f32x4Pmax: 0xeb,
  f64x2Abs: 0xec, f64x2Neg: 0xed, f64x2Sqrt: 0xef, f64x2Add: 0xf0, f64x2Sub: 0xf1, f64x2Mul: 0xf2, f64x2Div: 0xf3,
  f64x2Pmin: 0xf6, f64x2Pmax: 0xf7,
  i32x4TruncSatF32x4S: 0xf8, f32x4ConvertI32x4S: 0xfa, i32x4TruncSatF64x2SZero: 0xfc, f64x2ConvertLowI32x4S: 0xfe,
} as const;
