import type { ProgramNode } from '../../../ops/program.ts';
import { operandType } from '../codegen/analysis.ts';
import { opcode } from './opcodes.ts';

const FLOAT = new Float32Array(1);
const BITS = new Uint32Array(FLOAT.buffer);

/** A constant as the word that stands for it. */
export function constantBits(value: number, dtype: ProgramNode['dtype']): number {
  if (dtype === 'bool') return value !== 0 ? 1 : 0;
  if (dtype === 'int32') return (value | 0) >>> 0;
  FLOAT[0] = value;
  return BITS[0] as number;
}

/** Numbers of operations by what a node says of them: names are put together once. */
const FLOATS = new Map<string, number>();
const INTEGERS = new Map<string, number>();

/** The number of what a node does. */
export function operationOf(nodes: readonly ProgramNode[], node: ProgramNode & { kind: 'map' }): number {
  const operand = operandType(nodes, node);
  if (node.op === 'cast') return opcode(operationName(node, operand));
  const known = operand === 'float32' ? FLOATS : INTEGERS;
  let number = known.get(node.op);
  if (number === undefined) {
    number = opcode(operationName(node, operand));
    known.set(node.op, number);
  }
  return number;
}

function operationName(node: ProgramNode & { kind: 'map' }, operand: ProgramNode['dtype']): string {
  const float = operand === 'float32';
  if (node.op === 'cast') {
    if (node.dtype === operand || (operand === 'bool' && node.dtype === 'int32')) return 'move';
    const to = node.dtype === 'float32' ? 'to_float' : node.dtype === 'int32' ? 'to_int' : 'to_bool';
    return `${to}_${float ? 'float' : 'int'}`;
  }
  const name = node.op.replaceAll('-', '_');
  return name === 'select' || name.startsWith('logical_') ? name : `${name}_${float ? 'float' : 'int'}`;
}
