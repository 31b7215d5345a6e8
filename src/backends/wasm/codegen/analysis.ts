import type { ComputeType } from '../../../ops/dtype.ts';
import type { Program, ProgramNode } from '../../../ops/program.ts';
import { mapEmitter } from './maps.ts';

/**
 * How a program is run over one row: in passes over the columns. Pass p computes what depends on the
 * results of p reductions in sequence, so softmax takes three. Between passes p-1 and p, stage p computes
 * the values that are one a row. A pass recomputes from the inputs what an earlier pass has computed, or
 * reads it from the worker's scratch if that was expensive.
 */
export interface Analysis {
  /** The node reaches an output. */
  readonly live: Uint8Array;
  /** All lanes of the node's vector are equal over a whole row. */
  readonly uniform: Uint8Array;
  /** The node is the same for all rows. */
  readonly invariant: Uint8Array;
  /** The pass (of a uniform node: the stage) that can compute the node first; of a reduction: the stage that has its result. */
  readonly level: Uint8Array;
  /** Number of passes; outputs of full space are stored in the last one, since they may be in the place of an input. */
  readonly passes: number;
  /** Nodes that are kept in scratch from the pass that computes them first, where the row is short enough. */
  readonly stashed: readonly number[];
  readonly hasReduction: boolean;
  /** The greatest cost of a pass for one vector, in instructions. */
  readonly cost: number;
}

/** A program's passes have at most this many instructions' worth recomputed before a value is kept. */
const STASH_COST = 12;
const MAX_STASHED = 4;

/** The dtype that a map's operands have; of `select`, that of what it selects from. */
export function operandType(nodes: readonly ProgramNode[], node: ProgramNode & { kind: 'map' }): ComputeType {
  return (nodes[node.args[node.op === 'select' ? 1 : 0] as number] as ProgramNode).dtype;
}

export function analyze(program: Program): Analysis {
  const { nodes } = program;
  const count = nodes.length;
  const live = new Uint8Array(count);
  const uniform = new Uint8Array(count);
  const invariant = new Uint8Array(count);
  const level = new Uint8Array(count);
  for (const output of program.outputs) live[output.node] = 1;
  for (let i = count - 1; i >= 0; i--) {
    if (live[i] === 0) continue;
    const node = nodes[i] as ProgramNode;
    if (node.kind === 'map') for (const arg of node.args) live[arg] = 1;
    else if (node.kind === 'reduce') live[node.arg] = 1;
  }
  let passes = 0;
  let hasReduction = false;
  for (let i = 0; i < count; i++) {
    const node = nodes[i] as ProgramNode;
    if (node.kind === 'input') {
      uniform[i] = program.inputs[node.input]?.columnStride === 0 ? 1 : 0;
    } else if (node.kind === 'map') {
      let all = 1;
      let same = 1;
      let highest = 0;
      for (const arg of node.args) {
        all &= uniform[arg] as number;
        same &= invariant[arg] as number;
        highest = Math.max(highest, level[arg] as number);
      }
      uniform[i] = all;
      invariant[i] = same;
      level[i] = highest;
    } else if (node.kind === 'reduce') {
      uniform[i] = 1;
      level[i] = (level[node.arg] as number) + 1;
      if (live[i] === 1) {
        hasReduction = true;
        passes = Math.max(passes, level[i] as number);
      }
    } else {
      uniform[i] = 1;
      invariant[i] = 1;
    }
  }
  for (const output of program.outputs) {
    if (output.space === 'full') passes = Math.max(passes, (level[output.node] as number) + 1);
  }
  const partial = { live, uniform, invariant, level, passes, stashed: [] as number[], hasReduction, cost: 0 };
  if (passes > 1) partial.stashed = chooseStashed(program, partial);
  for (let pass = 0; pass < passes; pass++)
    partial.cost = Math.max(partial.cost, passCost(program, neededIn(program, partial, pass, true)));
  return partial;
}

/** A node of the program that is evaluated over the columns in `pass`: 1, or 2 if it is read from scratch. */
export function neededIn(program: Program, analysis: Analysis, pass: number, stash: boolean): Uint8Array {
  const { nodes } = program;
  const { level, live, uniform } = analysis;
  const needed = new Uint8Array(nodes.length);
  if (pass === analysis.passes - 1) {
    for (const output of program.outputs) if (output.space === 'full' && uniform[output.node] === 0) needed[output.node] = 1;
  }
  if (stash) for (const node of analysis.stashed) if (level[node] === pass) needed[node] = 1;
  for (let i = nodes.length - 1; i >= 0; i--) {
    const node = nodes[i] as ProgramNode;
    if (node.kind === 'reduce') {
      if (live[i] === 1 && level[node.arg] === pass && uniform[node.arg] === 0) needed[node.arg] = 1;
    } else if (needed[i] === 1 && node.kind === 'map') {
      if (stash && (level[i] as number) < pass && analysis.stashed.includes(i)) needed[i] = 2;
      else for (const arg of node.args) if (uniform[arg] === 0) needed[arg] = 1;
    }
  }
  return needed;
}

function nodeCost(program: Program, index: number): number {
  const node = program.nodes[index] as ProgramNode;
  return node.kind === 'map' ? mapEmitter(node.op, operandType(program.nodes, node), node.dtype).cost : 1;
}

function passCost(program: Program, needed: Uint8Array): number {
  let cost = 0;
  for (let i = 0; i < needed.length; i++) if (needed[i] !== 0) cost += needed[i] === 2 ? 1 : nodeCost(program, i);
  return cost;
}

/** The nodes at which a later pass takes over from an earlier one, where recomputing them costs more than scratch. */
function chooseStashed(program: Program, analysis: Analysis): number[] {
  const { nodes } = program;
  const { level, uniform } = analysis;
  const chosen: number[] = [];
  const consider = (index: number, pass: number): void => {
    if (nodes[index]?.kind !== 'map' || uniform[index] === 1 || (level[index] as number) >= pass || chosen.includes(index)) return;
    const cone = new Uint8Array(nodes.length);
    cone[index] = 1;
    for (let i = index; i >= 0; i--) {
      const node = nodes[i] as ProgramNode;
      if (cone[i] === 1 && node.kind === 'map' && !chosen.includes(i)) for (const arg of node.args) if (uniform[arg] === 0) cone[arg] = 1;
    }
    for (const other of chosen) cone[other] = 0;
    if (passCost(program, cone) >= STASH_COST && chosen.length < MAX_STASHED) chosen.push(index);
  };
  for (let pass = 1; pass < analysis.passes; pass++) {
    const needed = neededIn(program, analysis, pass, false);
    for (let i = 0; i < nodes.length; i++) {
      const node = nodes[i] as ProgramNode;
      if (needed[i] === 1 && node.kind === 'map' && level[i] === pass) for (const arg of node.args) consider(arg, pass);
      if (node.kind === 'reduce' && level[node.arg] === pass) consider(node.arg, pass);
    }
    if (pass === analysis.passes - 1) for (const output of program.outputs) if (output.space === 'full') consider(output.node, pass);
  }
  return chosen;
}
