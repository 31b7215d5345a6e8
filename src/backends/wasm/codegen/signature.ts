import type { Program, ProgramNode } from '../../../ops/program.ts';

const DTYPES = { float32: 'f', int32: 'i', bool: 'b', float16: 'h', bfloat16: 'g' } as const;

/** A cache key: programs with equal signatures compile to the same bytes, and programs that differ have different ones. */
export function programSignature(program: Program): string {
  const { inputs, nodes, outputs } = program;
  // Joined at the end: of texts added one to the other all parts would be kept.
  const parts = [`${program.outerRank};${program.scalars}`];
  for (const input of inputs) parts.push(DTYPES[input.dtype] + (input.columnStride === 'strided' ? 's' : input.columnStride));
  parts.push('');
  for (const node of nodes) parts.push(DTYPES[node.dtype] + nodeText(node));
  for (const output of outputs) parts.push(`>${output.node}${DTYPES[output.dtype]}${output.space}`);
  return parts.join(';');
}

function nodeText(node: ProgramNode): string {
  switch (node.kind) {
    case 'input':
      return `@${node.input}`;
    case 'constant':
      // The shortest text that reads back as the same number; String(-0) would lose the sign.
      return Object.is(node.value, -0) ? '=-0' : `=${node.value}`;
    case 'scalar':
      return `$${node.scalar}`;
    case 'map':
      return `${node.op}(${node.args.join()}`;
    default:
      return `/${node.op}(${node.arg}`;
  }
}
