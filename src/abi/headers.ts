import { descriptor } from './descriptor.ts';
import { control, operatorSlot, queueRecord, traceRecord, workerRecord } from './records.ts';
import {
  ABI_VERSION,
  CHANGE,
  CONTROL_ADDRESS,
  FLAG,
  FUNCTION_SLOTS,
  MAX_TILES,
  NO_QUEUE,
  OPERATOR_SLOTS,
  SCRATCH_BYTES,
  SLOT_STATE,
  STATUS,
  TILE,
  WORKER_STATE,
} from './status.ts';
import { numbersToC, numbersToConstants, structToC, structToConstants } from './struct.ts';

const STRUCTS = [descriptor, control, queueRecord, workerRecord, operatorSlot, traceRecord];
const NUMBERS = { STATUS, FLAG, WORKER_STATE, TILE, SLOT_STATE, CHANGE };
const LIMITS = { ABI_VERSION, CONTROL_ADDRESS, FUNCTION_SLOTS, MAX_TILES, NO_QUEUE, OPERATOR_SLOTS, SCRATCH_BYTES };

/** The CUDA (and C) header of everything in this folder. */
export function cudaHeader(): string {
  return [
    '/* Generated from src/abi; do not edit. */',
    '#pragma once',
    '#include <stddef.h>',
    '#include <stdint.h>',
    // NVRTC has no offsetof in constant expressions; the tests compile this header with compilers that have.
    '#ifdef __CUDACC_RTC__',
    '#define GPUOS_ASSERT_OFFSET(type, member, value, message)',
    '#else',
    '#define GPUOS_ASSERT_OFFSET(type, member, value, message) GPUOS_STATIC_ASSERT(offsetof(type, member) == value, message)',
    '#endif',
    '#ifdef __cplusplus',
    '#define GPUOS_STATIC_ASSERT(condition, message) static_assert(condition, message)',
    '#define GPUOS_ALIGN(bytes) alignas(bytes)',
    '#else',
    '#define GPUOS_STATIC_ASSERT(condition, message) _Static_assert(condition, message)',
    '#define GPUOS_ALIGN(bytes) __attribute__((aligned(bytes)))',
    '#endif',
    '',
    ...Object.entries(LIMITS).map(([key, value]) => `#define GPUOS_${key} ${value}u`),
    '',
    ...Object.entries(NUMBERS).map(([prefix, numbers]) => `${numbersToC(prefix, numbers)}\n`),
    ...STRUCTS.map((definition) => `${structToC(definition)}\n`),
  ].join('\n');
}

/** The constants of the WebAssembly device, as an AssemblyScript source. */
export function wasmConstants(): string {
  return [
    '// Generated from src/abi by scripts/build.mjs; do not edit.',
    ...Object.entries(LIMITS).map(([key, value]) => `export const ${key}: u32 = ${value};`),
    ...Object.entries(NUMBERS).map(([prefix, numbers]) => numbersToConstants(prefix, numbers)),
    ...STRUCTS.map(structToConstants),
    '',
  ].join('\n');
}
