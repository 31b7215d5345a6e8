import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import wabt from 'wabt';
import { ByteWriter, u32Size } from './byte-writer.ts';
import type { FunctionBuilder } from './function-builder.ts';
import { type FunctionDefinition, ModuleBuilder } from './module-builder.ts';
import { F64, I32, OP, SIMD, V128 } from './opcodes.ts';

const { readWasm } = await wabt();

/** Text of a module, by wabt. The engine validates it: wabt's own validation has no switch for shared memory. */
function disassemble(bytes: Uint8Array): string {
  expect(WebAssembly.validate(bytes as BufferSource)).toBe(true);
  const module = readWasm(bytes, { readDebugNames: false, threads: true, simd: true, multi_value: true } as never);
  try {
    return module.toText({ foldExprs: false, inlineExport: false });
  } finally {
    module.destroy();
  }
}

function read(writer: ByteWriter): Uint8Array {
  return writer.bytes.subarray(0, writer.length);
}

describe('ByteWriter', () => {
  test('LEB128 numbers read back', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 0, max: 0xffffffff }),
        fc.integer(),
        fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }),
        (u, s, l) => {
          const decode = (bytes: Uint8Array, signed: boolean): bigint => {
            let value = 0n;
            bytes.forEach((byte, i) => {
              value |= BigInt(byte & 0x7f) << BigInt(7 * i);
              expect(byte >= 0x80).toBe(i < bytes.length - 1);
            });
            return signed ? BigInt.asIntN(7 * bytes.length, value) : value;
          };
          const unsigned = new ByteWriter(1);
          unsigned.u32(u);
          expect(decode(read(unsigned), false)).toBe(BigInt(u));
          expect(u32Size(u)).toBe(unsigned.length);
          const signed = new ByteWriter(1);
          signed.i32(s);
          expect(decode(read(signed), true)).toBe(BigInt(s));
          const long = new ByteWriter(1);
          long.i64(l);
          expect(decode(read(long), true)).toBe(l);
        },
      ),
    );
  });

  test('a writer grows and keeps what it has', () => {
    const writer = new ByteWriter(2);
    for (let i = 0; i < 1000; i++) writer.u8(i & 255);
    const other = new ByteWriter(2);
    other.append(writer);
    other.append(writer);
    expect([...read(other)]).toEqual(Array.from({ length: 2000 }, (_, i) => (i % 1000) & 255));
  });
});

const HELPER: FunctionDefinition = {
  params: [V128],
  results: [V128],
  emit: (f) => void f.get(0).splat(1.5).simd(SIMD.f32x4Mul).splat64(-0).simd(SIMD.xor).splat64(0).simd(SIMD.or),
};

describe('ModuleBuilder', () => {
  const kernel = (emit: (f: FunctionBuilder) => void): FunctionDefinition => ({ params: [I32, I32, I32, I32], results: [I32], emit });

  test('functions, locals, constants, memory and control flow read back as text', () => {
    const bytes = new ModuleBuilder().encode(
      kernel((f) => {
        const counter = f.i32Local();
        const vector = f.vector();
        const number = f.local(F64);
        f.f64(-2.5).set(number);
        f.i32(-129).set(counter).block().loop();
        f.get(0)
          .simdMemory(SIMD.load, 16)
          .call(HELPER)
          .laneNumbers()
          .simd(SIMD.i32x4Add)
          .tee(vector)
          .get(vector)
          .shuffle(2, 3, 0, 5)
          .set(vector);
        f.get(0).get(vector).laneMemory(SIMD.store32Lane, 300, 3);
        f.get(counter).op(OP.i32Eqz).brIf(1).br(0).op(OP.end).op(OP.end);
        f.get(1).if(I32).get(0).i32Load(4).op(OP.else).i32(0).op(OP.end);
      }),
    );
    expect(disassemble(bytes)).toMatchSnapshot();
  });

  test('every instruction of the tables has the name that wabt gives it', () => {
    const plain = (name: string) => name.replaceAll(/[._]/g, '').toLowerCase();
    const bare = new Set<string>(['const', 'shuffle', 'not', 'and', 'andnot', 'or', 'xor', 'bitselect', 'anyTrue']);
    const BYTES: Readonly<Record<string, number>> = { 16: 1, 32: 2, 64: 3 };
    for (const [name, opcode] of Object.entries(SIMD)) {
      if (bare.has(name)) continue;
      // Operands of an unreachable place have any type and number, so one body fits every instruction.
      const lane = name.includes('Lane');
      const memory = /^(load|store)(?:(16|32|64)(?!x))?/.exec(name);
      const gives = !name.startsWith('store');
      const bytes = new ModuleBuilder().encode(
        kernel((f) => {
          f.op(OP.unreachable);
          if (memory !== null) {
            const alignment = BYTES[memory[2] ?? ''] ?? 2;
            if (lane) f.laneMemory(opcode, 8, 0, alignment);
            else f.simdMemory(opcode, 8, alignment);
          } else if (lane) f.lane(opcode, 0);
          else f.simd(opcode);
          if (gives) f.op(OP.drop);
          f.i32(0);
        }),
      );
      const text = disassemble(bytes);
      const wanted = memory === null ? plain(name) : `v128${plain(name)}`;
      expect(
        text.split('\n').some((line) => plain(line.trim().split(' ')[0] as string) === wanted),
        `${name}:\n${text}`,
      ).toBe(true);
    }
    expect(disassemble(new ModuleBuilder().encode(kernel((f) => f.get(0).i32Load16(6))))).toContain('i32.load16_u offset=6');
    for (const [name, opcode] of Object.entries(OP)) {
      if (['unreachable', 'else', 'end', 'return', 'drop', 'select'].includes(name)) continue;
      const text = disassemble(new ModuleBuilder().encode(kernel((f) => f.op(OP.unreachable).op(opcode).op(OP.drop).i32(0))));
      expect(
        text.split('\n').some((line) => plain(line.trim().split(' ')[0] as string) === plain(name)),
        `${name}:\n${text}`,
      ).toBe(true);
    }
  });

  test('a builder gives the same bytes again, and only the functions in use', () => {
    const builder = new ModuleBuilder();
    const calling = kernel((f) => f.get(0).simdMemory(SIMD.load, 0).call(HELPER).call(HELPER).op(OP.drop).i32(0));
    const first = builder.encode(calling);
    const without = builder.encode(kernel((f) => f.i32(0)));
    expect(builder.encode(calling)).toEqual(first);
    expect(disassemble(first).match(/^ {2}\(func /gm)).toHaveLength(2);
    expect(disassemble(without).match(/^ {2}\(func /gm)).toHaveLength(1);
  });
});
