import { readFileSync } from 'node:fs';
import type { Program } from '../../../ops/program.ts';
import { Emitter } from './emitter.ts';

/**
 * CUDA C++ of a fused program as one operator function, for NVRTC or nvcc with `programHeaders()`. Its machine code is
 * position-independent: no constants of its own, no calls, no relocations. The same program always gives the same text.
 * Throws GPUOS_INTERNAL for a program whose parameter block does not fit into the block's shared memory.
 */
export function emitProgram(program: Program, name: string): string {
  return new Emitter(program, name).emit();
}

const FILES = ['program.cuh', 'program-functions.cuh', 'half.cuh'] as const;

/** What emitted programs include besides gpuos_abi.h. */
export function programHeaders(): Readonly<Record<string, string>> {
  return Object.fromEntries(FILES.map((name) => [name, readFileSync(new URL(`../device/${name}`, import.meta.url), 'utf8')]));
}
