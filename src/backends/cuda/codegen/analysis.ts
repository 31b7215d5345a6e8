import type { ComputeType } from '../../../ops/dtype.ts';
import type { MapName, Program, ProgramNode, ReduceName, RoundName } from '../../../ops/program.ts';

/**
 * How a program is run over one row: in passes over the columns. Pass p computes what depends on the results of p
 * reductions in sequence, so softmax takes three; stage p, before pass p, computes the values that are one a row. A
 * pass computes from the inputs again what an earlier one has computed.
 */
export interface Analysis {
  /** The node reaches an output. */
  readonly live: readonly boolean[];
  /** The node has one value a row. */
  readonly uniform: readonly boolean[];
  /** The pass (of a uniform node: the stage) that can compute the node first; of a reduction: the stage that has its result. */
  readonly level: readonly number[];
  /** Number of passes; outputs of full space are stored in the last one, since they may be in the place of an input. */
  readonly passes: number;
  readonly hasReduction: boolean;
}

/** The dtype that a map's operands have; of `select`, that of what it selects from. */
export function operandType(nodes: readonly ProgramNode[], node: ProgramNode & { kind: 'map' }): ComputeType {
  return nodes[node.args[node.op === 'select' ? 1 : 0] as number]!.dtype;
}

export function analyze(program: Program): Analysis {
  const { nodes } = program;
  const live = nodes.map(() => false);
  for (const output of program.outputs) live[output.node] = true;
  for (let i = nodes.length - 1; i >= 0; i--) {
    if (!live[i]) continue;
    const node = nodes[i]!;
    if (node.kind === 'map') for (const arg of node.args) live[arg] = true;
    else if (node.kind === 'reduce') live[node.arg] = true;
  }
  const uniform: boolean[] = [];
  const level: number[] = [];
  let passes = 0;
  let hasReduction = false;
  nodes.forEach((node, i) => {
    uniform[i] = true;
    level[i] = 0;
    if (node.kind === 'input') uniform[i] = program.inputs[node.input]!.columnStride === 0;
    else if (node.kind === 'map') {
      uniform[i] = node.args.every((arg) => uniform[arg]);
      level[i] = Math.max(0, ...node.args.map((arg) => level[arg]!));
    } else if (node.kind === 'reduce') {
      level[i] = level[node.arg]! + 1;
      if (live[i]) {
        hasReduction = true;
        passes = Math.max(passes, level[i]!);
      }
    }
  });
  for (const output of program.outputs) if (output.space === 'full') passes = Math.max(passes, level[output.node]! + 1);
  return { live, uniform, level, passes, hasReduction };
}

export interface PassContents {
  /** Nodes that are evaluated for each column, in topological order. */
  readonly full: readonly number[];
  /** Reductions that are folded in this pass. */
  readonly reductions: readonly number[];
  /** Whether this pass stores the outputs of full space. */
  readonly stores: boolean;
}

export function contentsOf(program: Program, { live, uniform, level, passes }: Analysis, pass: number): PassContents {
  const { nodes } = program;
  const needed = nodes.map(() => false);
  const stores = pass === passes - 1 && program.outputs.some((output) => output.space === 'full');
  if (stores) for (const output of program.outputs) if (output.space === 'full' && !uniform[output.node]) needed[output.node] = true;
  const reductions: number[] = [];
  const full: number[] = [];
  for (let i = nodes.length - 1; i >= 0; i--) {
    const node = nodes[i]!;
    if (node.kind === 'reduce') {
      if (!live[i] || level[node.arg] !== pass) continue;
      reductions.unshift(i);
      if (!uniform[node.arg]) needed[node.arg] = true;
    } else if (needed[i]) {
      full.unshift(i);
      if (node.kind === 'map') for (const arg of node.args) if (!uniform[arg]) needed[arg] = true;
    }
  }
  return { full, reductions, stores };
}

/** Nodes with one value a row that stage `stage` computes: all that are live but reductions. */
export function stageOf(program: Program, { live, uniform, level }: Analysis, stage: number): number[] {
  return program.nodes.flatMap((node, i) => (live[i] && uniform[i] && node.kind !== 'reduce' && level[i] === stage ? [i] : []));
}

/** Instructions of an operation on the device, roughly; those that are not listed take one or two. */
const COSTS: Readonly<Partial<Record<MapName | RoundName, number>>> = {
  ...{ div: 25, 'floor-div': 30, mod: 60, pow: 90, atan2: 55, exp: 16, expm1: 18, log: 22, log1p: 26, sqrt: 12, rsqrt: 35 },
  ...{ reciprocal: 25, erf: 45, tanh: 25, sigmoid: 25, softplus: 45, sin: 60, cos: 60, tan: 60, asin: 25, acos: 25, atan: 25 },
  ...{ sinh: 45, cosh: 35, asinh: 60, acosh: 60, atanh: 40, elu: 20, selu: 20, gelu: 45, 'gelu-tanh': 30, silu: 26 },
};

export function nodeCost(node: ProgramNode): number {
  return node.kind === 'map' ? (COSTS[node.op] ?? 2) : node.kind === 'reduce' ? 8 : 1;
}

/** The reduction in device/program.cuh. Of bools, sum and max mean any, prod and min mean all. */
export function reductionType(op: ReduceName, operand: ComputeType): string {
  if (op === 'argmax' || op === 'argmin') return (op === 'argmax' ? 'Argmax' : 'Argmin') + (operand === 'float32' ? 'Float' : 'Int');
  if (operand === 'bool' || op === 'any' || op === 'all') return op === 'prod' || op === 'min' || op === 'all' ? 'All' : 'Any';
  return op.charAt(0).toUpperCase() + op.slice(1) + (operand === 'float32' ? 'Float' : 'Int');
}
