import { describe, expect, it } from 'vitest';
import { INSTRUCTION_BYTES, scanCode } from './instructions.ts';

type Words = readonly [number, number, number, number];

/** `CALL.REL.NOINC` over the next instruction, with predicate 3, as ptxas wrote it for sm_80. */
const CALL: Words = [0x00003944, 0x10, 0x03c00000, 0x000fe200];
const NOP: Words = [0x00007918, 0, 0, 0x000fc000];
/** RET.ABS to registers 20 and 21. */
const RET: Words = [0x14007950, 0, 0x03e00000, 0x000fea00];
/** BRA over so many bytes from its own end on. */
const bra = (bytes: number): Words => [0x00007947, bytes >>> 0, bytes < 0 ? 0x0383ffff : 0x03800000, 0x000fc000];

function assemble(...instructions: readonly Words[]): Uint8Array {
  return new Uint8Array(Uint32Array.from(instructions.flat()).buffer);
}

/** A loop with that end, as ptxas writes it: the branch back to the top, the way out, and a guard behind the return. */
const loop = (call: Words): Uint8Array => assemble(NOP, call, bra(-48), NOP, RET, bra(-16), NOP, NOP);
const CALL_AT = INSTRUCTION_BYTES;

const kinds = (code: Uint8Array, sm = 80): string[] => scanCode(code, sm).findings.map(({ kind }) => kind);
const flipped = (bit: number): Words =>
  CALL.map((word, i) => (i === bit >> 5 ? (word ^ (1 << (bit & 31))) >>> 0 : word)) as unknown as Words;

describe("a loop's end", () => {
  it('is a CALL.REL.NOINC over a BRA, from sm_80 to sm_89', () => {
    for (const sm of [80, 86, 87, 88, 89]) expect(kinds(loop(CALL), sm)).toEqual([]);
    for (const sm of [75, 79, 90, 100, 103, 120]) expect(kinds(loop(CALL), sm)).toContain('call');
  });

  it('has one form: its predicate and what the scheduler is told may differ, nothing else', () => {
    expect(kinds(loop(flipped(0)))).not.toContain('call');
    for (let bit = 16; bit < 128; bit++) expect([bit, kinds(loop(flipped(bit)))]).toEqual([bit, bit < 105 ? ['call'] : []]);
    for (let bit = 12; bit < 16; bit++) expect([bit, kinds(loop(flipped(bit)))]).toEqual([bit, []]);
    // Bits 9 to 11 are the form of the operands: a register or a constant in the place of the distance.
    for (let bit = 9; bit < 12; bit++) expect([bit, kinds(loop(flipped(bit)))]).toEqual([bit, ['indirect-branch']]);
  });

  it('goes to the instruction after the next, no other', () => {
    for (const distance of [-32, -16, 0, 4, 8, 12, 20, 32, 48, 0x1000]) {
      const high = distance < 0 ? 0x03c3ffff : 0x03c00000;
      expect([distance, kinds(loop([CALL[0], distance >>> 0, high, CALL[3]]))]).toEqual([distance, ['call']]);
    }
  });

  it('goes over an unconditional branch, no other instruction', () => {
    expect(kinds(assemble(NOP, CALL, NOP, NOP, RET, bra(-16)))).toEqual(['call']);
    expect(kinds(assemble(NOP, CALL, RET, NOP, RET, bra(-16)))).toEqual(['call']);
    const conditional: Words = [0x00003947, ...bra(-48).slice(1)] as unknown as Words;
    expect(kinds(assemble(NOP, CALL, conditional, NOP, RET, bra(-16)))).toEqual(['call']);
  });

  it('stays inside the function: a target at its end, or in the NOPs behind it, is refused', () => {
    expect(kinds(assemble(RET, CALL, bra(-32)))).toEqual(['call']);
    expect(kinds(assemble(RET, CALL, bra(-32), NOP, NOP))).toEqual(['call']);
    expect(kinds(assemble(RET, NOP, NOP, CALL))).toContain('call');
    expect(kinds(assemble(NOP, CALL, bra(-48), RET))).toEqual([]);
    expect(kinds(assemble(NOP, CALL, bra(-48), RET, bra(-16)))).toEqual([]);
  });

  it('does not hide where the branch behind it goes', () => {
    for (const bytes of [-64, 48, 1 << 20]) {
      expect([bytes, kinds(assemble(NOP, CALL, bra(bytes), NOP, RET, bra(-16)))]).toEqual([bytes, ['branch']]);
    }
  });

  it('is found where the code lies anywhere in its buffer', () => {
    const code = loop(CALL);
    const buffer = new Uint8Array(code.length + 48).fill(0xff);
    buffer.set(code, 16);
    expect(kinds(buffer.subarray(16, 16 + code.length))).toEqual([]);
    expect(new DataView(code.buffer).getUint32(CALL_AT, true) & 0xfff).toBe(0x944);
  });
});

describe('a branch', () => {
  it('does not go to the NOPs behind the code, from which it would run on', () => {
    expect(kinds(assemble(bra(0), RET, bra(-16), NOP))).toEqual([]);
    expect(kinds(assemble(bra(32), RET, bra(-16), NOP))).toEqual(['branch']);
    expect(kinds(assemble(bra(48), RET, bra(-16), NOP))).toEqual(['branch']);
  });
});
