/** Fused programs as bytecode for `operator_interpret` of device/interpreter.cuh: the first tier, before a program is compiled. */
export { checkBytecode } from './check.ts';
export { encodeProgram } from './encode.ts';
