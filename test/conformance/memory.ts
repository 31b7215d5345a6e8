import { expect } from 'vitest';
import type { Block } from '../../src/runtime/heap.ts';
import type { System } from '../../src/runtime/system.ts';

const POISON = 0x7fc0dead;

/**
 * Watches a system's heap: that no two live blocks overlap and none is released twice, and poisons every
 * block that it hands out, so that what reads freed or unwritten memory sees NaN. A block that tasks may
 * still use is left alone: those tasks are right to.
 */
export class HeapWatch {
  readonly #live = new Map<number, Block>();
  readonly faults: string[] = [];

  constructor(system: System) {
    const { heap, device } = system;
    // Every block comes out of this one, those of allocate() too.
    const allocate = heap.tryAllocate.bind(heap);
    const release = heap.release.bind(heap);
    heap.tryAllocate = (bytes, mark, idle) => {
      const block = allocate(bytes, mark, idle);
      if (block === undefined) return undefined;
      if (block.bytes < bytes) this.faults.push(`${bytes} bytes asked for, ${block.bytes} given`);
      if (idle === true && block.lastUse >= mark) this.faults.push(`a block for the host to write is in use by task ${block.lastUse}`);
      for (const other of this.#live.values()) {
        if (block.address < other.address + other.bytes && other.address < block.address + block.bytes) {
          this.faults.push(`block ${block.address} overlaps block ${other.address}, which is in use`);
        }
      }
      this.#live.set(block.address, block);
      // Where the host does not see it, it cannot write there.
      if (device.memory === device.hostMemory && block.lastUse < system.queue(0).mark) {
        device.views().i32.fill(POISON, block.address >> 2, (block.address + block.bytes) >> 2);
      }
      return block;
    };
    heap.release = (block) => {
      if (!this.#live.delete(block.address)) this.faults.push(`block ${block.address} is released twice`);
      release(block);
    };
  }

  get liveBlocks(): number {
    return this.#live.size;
  }

  check(): void {
    expect(this.faults).toEqual([]);
  }
}
