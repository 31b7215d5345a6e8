import type { Program } from '../../../ops/program.ts';

const DTYPES = { float32: 'f', int32: 'i', bool: 'b', float16: 'h', bfloat16: 'g' } as const;

/** A cache key: programs with equal signatures compile to the same bytes, and programs that differ have different ones. */
export function programSignature(program: Program): string {
  let key = `${program.outerRank};${program.scalars};`;
  for (const input of program.inputs) key += DTYPES[input.dtype] + (input.columnStride === 'strided' ? 's' : input.columnStride);
  key += ';';
  for (const node of program.nodes) {
    key += DTYPES[node.dtype];
    switch (node.kind) {
      case 'input':
        key += `@${node.input}`;
        break;
      case 'constant':
        // The shortest text that reads back as the same number; String(-0) would lose the sign.
        key += Object.is(node.value, -0) ? '=-0' : `=${node.value}`;
        break;
      case 'scalar':
        key += `$${node.scalar}`;
        break;
      case 'map':
        key += node.op;
        for (let i = 0; i < node.args.length; i++) key += i === 0 ? `(${node.args[i]}` : `,${node.args[i]}`;
        break;
      case 'reduce':
        key += `/${node.op}(${node.arg}`;
        break;
    }
    key += ';';
  }
  for (const output of program.outputs) key += `>${output.node}${DTYPES[output.dtype]}${output.space}`;
  return key;
}
