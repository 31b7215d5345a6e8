import { GpuosError } from '../errors.ts';

const ALIGN_BYTES = 64;
/** A slot of the workspace is used anew only this many steps later, so that the order that this forces costs nothing. */
const REUSE_DISTANCE = 3;

/** How many bytes are set apart for so many. */
export const align = (bytes: number): number => Math.ceil(bytes / ALIGN_BYTES) * ALIGN_BYTES;

interface Slot {
  readonly offset: number;
  /** Room. */
  readonly bytes: number;
  /** Bytes of what lies there, and of an element of it. */
  used: number;
  unit: number;
  /** Last chain that reads what lies there. */
  until: number;
  /** First chain of the run that alone reads what lies there, piece by piece; -1: there is none. */
  run: number;
}

/**
 * Places the intermediate values of a plan. Memory is used anew when its last reader is far enough back;
 * within a run at once, since a tile comes to its next chain only after the one before, and pieces of
 * values of equal size lie in equal places.
 */
export class Workspace {
  readonly #offsets = new Map<number, number>();
  readonly #slots: Slot[] = [];
  bytes = 0;

  /**
   * Returns the chain that has to be complete before the place may be written, or -1. `run`: the first chain of
   * the run that alone reads the value, or -1. `inPlace`: it may lie where the chain itself reads its input.
   */
  place(node: number, bytes: number, unit: number, chain: number, lastReader: number, run: number, inPlace: boolean): number {
    const size = align(Math.max(1, bytes));
    const fits = (slot: Slot): boolean => slot.bytes >= size && slot.bytes <= 2 * size;
    const isFree = (slot: Slot): boolean => slot.until < chain || (inPlace && slot.until === chain);
    // Elements of another width would lie in other places, although the bytes are as many.
    const alike = (slot: Slot): boolean => slot.used === bytes && slot.unit === unit;
    let slot = run >= 0 ? this.#slots.find((known) => known.run === run && isFree(known) && alike(known)) : undefined;
    let waits = -1;
    if (slot === undefined) {
      slot = this.#slots.find((known) => known.until <= chain - REUSE_DISTANCE && fits(known));
      if (slot !== undefined) waits = slot.until;
    }
    if (slot === undefined) {
      slot = { offset: this.bytes, bytes: size, used: bytes, unit, until: lastReader, run: -1 };
      this.#slots.push(slot);
      this.bytes += size;
    }
    slot.used = bytes;
    slot.unit = unit;
    slot.until = lastReader;
    slot.run = run;
    this.#offsets.set(node, slot.offset);
    return waits;
  }

  offset(node: number): number {
    const offset = this.#offsets.get(node);
    if (offset === undefined) throw new GpuosError('GPUOS_INTERNAL', `Value ${node} of a plan has no memory.`);
    return offset;
  }
}
