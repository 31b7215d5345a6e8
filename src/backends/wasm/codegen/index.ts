import { type Program, type ProgramLayout, programLayout } from '../../../ops/program.ts';
import type { FunctionDefinition } from '../encoder/module-builder.ts';
import { ModuleBuilder } from '../encoder/module-builder.ts';
import { I32, OP } from '../encoder/opcodes.ts';
import { analyze } from './analysis.ts';
import { KERNEL_PARAMS, kernelFunction, stashColumns } from './kernel.ts';
import { programParameters } from './parameters.ts';

export interface CompiledProgram {
  /** A module that imports `env.memory` (shared) and exports `f(params, tile, tiles, scratch)`, which returns 0. */
  readonly bytes: Uint8Array;
  readonly layout: ProgramLayout;
}

const builder = new ModuleBuilder();

/** Compiles a fused program to a WebAssembly module. The same program always gives the same bytes. */
export function compileProgram(program: Program): CompiledProgram {
  const analysis = analyze(program);
  const whole = kernelFunction(program, analysis, false);
  let exported = whole;
  if (analysis.stashed.length > 0) {
    const stashing = kernelFunction(program, analysis, true);
    const pass = [0, 1, 2, 3];
    const choose: FunctionDefinition = {
      params: KERNEL_PARAMS,
      results: [I32],
      emit(f) {
        f.get(0).i32Load(programParameters(program).columns).i32(stashColumns(analysis)).op(OP.i32LeU).if(I32);
        for (const local of pass) f.get(local);
        f.call(stashing).op(OP.else);
        for (const local of pass) f.get(local);
        f.call(whole).op(OP.end);
      },
    };
    exported = choose;
  }
  return { bytes: builder.encode(exported), layout: programLayout(program) };
}

export { programSignature } from './signature.ts';
