import { readFileSync } from 'node:fs';
import { ElfFile, SHDR_BYTES, SYMBOL_BYTES } from '../../src/backends/cuda/elf/elf.ts';

/** A committed cubin with its function under the name that emitted sources have: a string table of its own behind the file. */
export function operatorCubin(name: string): { readonly bytes: Buffer; readonly codeOffset: number; readonly codeBytes: number } {
  const bytes = readFileSync(new URL(`../fixtures/cubin/${name}.cubin`, import.meta.url));
  const elf = new ElfFile(new Uint8Array(bytes));
  const symbols = elf.sections.find(({ type }) => type === 2)!;
  const strings = elf.sections[symbols.link]!;
  const whole = Buffer.concat([bytes, elf.contents(strings), Buffer.from('gpuos_operator\0')]);
  const header = Number(whole.readBigUInt64LE(40)) + strings.index * SHDR_BYTES;
  whole.writeBigUInt64LE(BigInt(bytes.length), header + 24);
  whole.writeBigUInt64LE(BigInt(whole.length - bytes.length), header + 32);
  for (const { index } of elf.symbolsNamed('op', 2)) whole.writeUInt32LE(strings.size, symbols.offset + index * SYMBOL_BYTES);
  const code = elf.sections.find((section) => section.name === '.text.op')!;
  return { bytes: whole, codeOffset: code.offset, codeBytes: code.size };
}
