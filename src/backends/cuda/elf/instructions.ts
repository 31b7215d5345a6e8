/**
 * What a function's machine code has to satisfy so that the resident kernel can call it at any address.
 *
 * The encoding is not documented by NVIDIA. What is read here was observed in what nvcc 13.0 writes for sm_75 to
 * sm_121, and the tests repeat the observation: instructions of 16 bytes; the operation in bits 0 to 8, its form of
 * operands in bits 9 to 11, the predicate in bits 12 to 15 (7: always), registers in bytes 2 (destination) and 3.
 * Operations 0x140 to 0x15f are those of control flow. Whatever of them is not known here is refused: a wrong refusal
 * costs a relaunch, a wrong acceptance costs the device.
 */

export const INSTRUCTION_BYTES = 16;

/** What is wrong with the code, or worth knowing of it. */
export type CodeFindingKind = 'indirect-branch' | 'call' | 'exit' | 'return' | 'branch' | 'instruction' | 'dynamic-stack';

export interface CodeFinding {
  readonly kind: CodeFindingKind;
  /** Byte offset in the function. */
  readonly at: number;
  readonly message: string;
}

export interface CodeScan {
  /** One of each kind at most. */
  readonly findings: readonly CodeFinding[];
  /** Where it calls an address that is still 0, for a relocation to fill in. */
  readonly absoluteCalls: readonly number[];
}

/** Control flow that stays inside the function: BSYNC, BREAK, BSSY, YIELD, WARPSYNC, BMOV (two forms), NANOSLEEP. */
const HARMLESS: ReadonlySet<number> = new Set([0x141, 0x142, 0x145, 0x146, 0x148, 0x155, 0x156, 0x15d]);
const CALL_ABS = 0x943;
const CALL_REL = 0x944;
/** BRA, and BRA with a uniform predicate, which sm_100 has (observed: the distance lies in the same bits). */
const BRA = 0x947;
const BRA_UNIFORM = 0x547;
const ALWAYS_BRA = 0x7000 | BRA;
const RET = 0x950;
const NOP = 0x918;
/**
 * The one CALL.REL that stays inside the function: CALL.REL.NOINC over the instruction after it, which is a BRA. From
 * sm_80 to sm_89 ptxas ends loops with it in the place of a branch (observed on each of them, no other CALL.REL among the
 * programs of `test/cuda-codegen/`). A CALL writes no return address, the code before it does, so this is a jump. All of
 * its bits are compared but for the predicate (12 to 15) and what the scheduler is told (105 and up).
 */
const LOOP_END = {
  firstSm: 80,
  lastSm: 89,
  words: [CALL_REL, INSTRUCTION_BYTES, 0x03c00000, 0],
  masks: [0xffff0fff, -1, -1, 0x1ff],
} as const;
const INDIRECT: ReadonlyMap<number, string> = new Map([
  [0x149, 'BRX'],
  [0x14a, 'JMP'],
  [0x14c, 'JMX'],
  [0x158, 'JMXU'],
  [0x159, 'BRXU'],
]);
const ENDS: ReadonlyMap<number, string> = new Map([
  [0x14d, 'EXIT'],
  [0x15b, 'KILL'],
  [0x15c, 'BPT'],
]);

/** The return address is in registers 20 and 21 (observed in every device function that is compiled to be linked). */
const RETURN_REGISTER = 20;
/** The stack pointer (observed; the ABI's callers set it up). */
const STACK_REGISTER = 1;
/** Ways of writing the stack pointer by which a frame of fixed size is taken and given back: add an immediate, align, move. */
const FIXED_FRAME: ReadonlySet<number> = new Set([0x810, 0x836, 0x812, 0x202]);

/** Bits 34 to 81, signed: the distance or address that a jump carries, in units of 4 bytes (with byte 2 below it from sm_90 on). */
function jumpField(view: DataView, at: number, sm: number): number {
  const high = (view.getUint32(at + 4, true) >>> 2) + (view.getUint32(at + 8, true) & 0x3ffff) * 2 ** 30;
  const signed = high >= 2 ** 47 ? high - 2 ** 48 : high;
  return sm >= 90 ? (signed * 256 + view.getUint8(at + 2)) * 4 : signed * 4;
}

/** Whether the CALL.REL at `at` is a loop's end, and goes to a place before `end`: see LOOP_END. */
function isLoopEnd(view: DataView, at: number, end: number, sm: number): boolean {
  const { firstSm, lastSm, words, masks } = LOOP_END;
  if (sm < firstSm || sm > lastSm || at + 2 * INSTRUCTION_BYTES >= end) return false;
  const over = view.getUint32(at + INSTRUCTION_BYTES, true) & 0xffff;
  return over === ALWAYS_BRA && words.every((word, i) => ((view.getUint32(at + 4 * i, true) ^ word) & masks[i]!) === 0);
}

/** Where a function's instructions end and the NOPs behind them begin, which nothing may go to. */
function endOf(view: DataView): number {
  let end = view.byteLength;
  while (end > 0 && (view.getUint32(end - INSTRUCTION_BYTES, true) & 0xfff) === NOP) end -= INSTRUCTION_BYTES;
  return end;
}

/** Looks at every instruction of a function compiled for `sm`; the code's length has to be a multiple of 16. */
export function scanCode(code: Uint8Array, sm: number): CodeScan {
  const view = new DataView(code.buffer, code.byteOffset, code.length);
  const findings: CodeFinding[] = [];
  const absoluteCalls: number[] = [];
  const find = (kind: CodeFindingKind, at: number, message: string) => {
    if (!findings.some((f) => f.kind === kind)) findings.push({ kind, at, message });
  };
  const end = endOf(view);
  let returns = 0;
  for (let at = 0; at < code.length; at += INSTRUCTION_BYTES) {
    const word = view.getUint32(at, true);
    const operation = word & 0xfff;
    const family = word & 0x1ff;
    if (family < 0x140 || family > 0x15f) {
      if (((word >>> 16) & 0xff) === STACK_REGISTER && !FIXED_FRAME.has(operation)) {
        find(
          'dynamic-stack',
          at,
          'its stack grows by an amount that is known only at run time, or the stack pointer is written in an unknown way',
        );
      }
      continue;
    }
    if (HARMLESS.has(family)) continue;
    if (operation === BRA || operation === BRA_UNIFORM) {
      const target = at + INSTRUCTION_BYTES + jumpField(view, at, sm);
      if (target < 0 || target >= end || target % INSTRUCTION_BYTES !== 0) find('branch', at, 'it branches to a place outside of itself');
    } else if (operation === RET) {
      returns++;
      // Bit 85 distinguishes RET.ABS, which takes the register as it is, from RET.REL, which adds to its own place.
      const absolute = (view.getUint32(at + 8, true) & (1 << 21)) !== 0;
      if (!absolute || jumpField(view, at, sm) !== 0 || word >>> 24 !== RETURN_REGISTER) {
        find('return', at, `it does not return by RET.ABS to registers ${RETURN_REGISTER} and ${RETURN_REGISTER + 1}`);
      }
    } else if (operation === CALL_ABS && jumpField(view, at, sm) === 0) absoluteCalls.push(at);
    else if (operation === CALL_ABS) find('call', at, 'it calls an absolute address');
    else if (operation === CALL_REL && isLoopEnd(view, at, end, sm)) continue;
    else if (operation === CALL_REL) find('call', at, 'it calls itself, or code at a fixed distance');
    else if (family === (CALL_ABS & 0x1ff) || family === (CALL_REL & 0x1ff)) find('indirect-branch', at, 'it calls through a pointer');
    else if (INDIRECT.has(family)) find('indirect-branch', at, `it branches by a table or a register (${INDIRECT.get(family)})`);
    else if (ENDS.has(family)) find('exit', at, `it ends or stops the resident kernel's threads (${ENDS.get(family)})`);
    else find('instruction', at, `it has a control instruction that is not known to be safe (0x${operation.toString(16)})`);
  }
  if (returns === 0) find('return', 0, 'it never returns');
  if (end > 0) {
    const last = end - INSTRUCTION_BYTES;
    const word = view.getUint32(last, true);
    const always = ((word >>> 12) & 15) === 7;
    if (!always || ((word & 0xfff) !== BRA && (word & 0xfff) !== RET)) find('return', last, 'it runs off its end');
  }
  return { findings, absoluteCalls };
}
