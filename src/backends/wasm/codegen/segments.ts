import type { Program, ProgramNode } from '../../../ops/program.ts';
import type { Analysis } from './analysis.ts';
import type { Pass } from './columns.ts';

/**
 * A pass that reads many operands is split into segments of a few operands each. A block of columns goes
 * through all segments before the next block starts; values that one segment hands to another wait in
 * scratch. One loop over all operands would have more streams than the hardware prefetches or than the
 * ways of the first-level cache hold (operands are often a multiple of 4 KiB apart), and the engine moves
 * all loads of a loop's body to its top, where they overflow the registers. Measured on a chain of 100
 * operations with 67 operands: 3 times faster at 1,024 columns, 2 times at 16,384.
 */
export interface Segments {
  readonly passes: readonly Pass[];
  /** Inputs that each segment reads. */
  readonly inputs: readonly (readonly number[])[];
  /** Bytes of columns in a block. */
  readonly blockBytes: number;
}

/** Operands of a segment, measured: with fewer the hand-over weighs, with more the prefetcher loses track. */
const STREAMS = 4;
/** A pass with up to this many operands stays whole. */
const WHOLE_STREAMS = 6;
/** Vectors in flight in a segment: the loads of its operands, all at the top of the loop, then fit into 16 registers. */
export const SEGMENT_VECTORS = 2;
/** Values that may be handed over at one cut. */
const MAX_CROSSING = 2;
/** Scratch for all handed-over values of a block, which should stay in the first-level cache. */
const BLOCK_BYTES = 16384;

/** The segments of the only pass of a program without reductions, or undefined if it should stay whole. */
export function splitPass(program: Program, analysis: Analysis, pass: Pass): Segments | undefined {
  const { nodes } = program;
  const { uniform } = analysis;
  const lastUse = new Int32Array(nodes.length);
  const inputs = new Set<number>();
  nodes.forEach((node, i) => {
    if (node.kind !== 'map' || pass.needed[i] !== 1) return;
    for (const arg of node.args) {
      lastUse[arg] = i;
      if (uniform[arg] === 0 && nodes[arg]?.kind === 'input') inputs.add(arg);
    }
  });
  if (inputs.size <= WHOLE_STREAMS) return undefined;
  for (const output of program.outputs) if (output.space === 'full') lastUse[output.node] = nodes.length;

  const isValue = (i: number) => (nodes[i] as ProgramNode).kind === 'map' && uniform[i] === 0 && pass.needed[i] === 1;
  const cuts: number[] = [];
  const streams = new Set<number>();
  let live = 0;
  for (let i = 0; i < nodes.length; i++) {
    if (!isValue(i)) continue;
    const { args } = nodes[i] as ProgramNode & { kind: 'map' };
    const fresh = args.some((arg) => uniform[arg] === 0 && nodes[arg]?.kind === 'input' && !streams.has(arg));
    if (fresh && streams.size >= STREAMS && live > 0 && live <= MAX_CROSSING) {
      cuts.push(i);
      streams.clear();
    }
    for (const arg of new Set(args)) {
      if (uniform[arg] === 1) continue;
      if (nodes[arg]?.kind === 'input') streams.add(arg);
      else if (lastUse[arg] === i) live--;
    }
    if ((lastUse[i] as number) > i) live++;
  }
  if (cuts.length === 0) return undefined;
  cuts.push(nodes.length);

  const segmentOf = new Int32Array(nodes.length + 1).fill(cuts.length - 1);
  for (let i = 0, segment = 0; i < nodes.length; i++) {
    if (i === cuts[segment]) segment++;
    segmentOf[i] = segment;
  }
  const lastSegmentOf = (node: number) => segmentOf[lastUse[node] as number] as number;
  const slots = new Map<number, number>();
  const busyUntil: number[] = [];
  for (let i = 0; i < nodes.length; i++) {
    const segment = segmentOf[i] as number;
    if (!isValue(i) || lastSegmentOf(i) <= segment) continue;
    // A slot that is read in this very segment stays taken: the segment's loop reads and writes column by column.
    let slot = busyUntil.findIndex((until) => until < segment);
    if (slot < 0) slot = busyUntil.push(0) - 1;
    busyUntil[slot] = lastSegmentOf(i);
    slots.set(i, slot);
  }
  const blockBytes = BLOCK_BYTES >> Math.ceil(Math.log2(busyUntil.length));
  const offsets = new Map<number, number>();
  for (const [node, slot] of slots) offsets.set(node, slot * blockBytes);
  const inputsOf: number[][] = [];
  const passes = cuts.map((to, segment): Pass => {
    const from = segment === 0 ? 0 : (cuts[segment - 1] as number);
    const needed = new Uint8Array(nodes.length);
    const read = new Set<number>();
    for (let i = from; i < to; i++) {
      const node = nodes[i] as ProgramNode;
      needed[i] = pass.needed[i] as number;
      if (node.kind !== 'map' || needed[i] !== 1) continue;
      for (const arg of node.args) {
        const source = nodes[arg] as ProgramNode;
        if (source.kind === 'input' && uniform[arg] === 0) read.add(source.input);
      }
    }
    const stash: number[] = [];
    for (const node of slots.keys()) {
      if (node < from && lastSegmentOf(node) >= segment) needed[node] = 2;
      else if (node >= from && node < to) stash.push(node);
    }
    inputsOf.push([...read]);
    return { needed, from, to, accumulators: pass.accumulators, stash, slots: offsets, last: segment === cuts.length - 1 };
  });
  return { passes, inputs: inputsOf, blockBytes };
}
