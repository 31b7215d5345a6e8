import type { DType } from '../ops/define.ts';
import { Kernel } from './emission.ts';
import { type Copy, Fusion, type FusionResult, type Group } from './fusion.ts';
import { type Graph, type GraphNode, isExternal } from './graph.ts';
import type { ShapeInfo } from './shape-info.ts';
import type { Sizes } from './sizes.ts';

/** What is to be done of a group: nothing, where nobody needs what it computes. */
export type Work =
  | { readonly kind: 'kernel'; readonly kernel: Kernel }
  | { readonly kind: 'fixed'; readonly node: number }
  | { readonly kind: 'copy'; readonly node: number };

/**
 * What a computation's plan is whatever its sizes are: what becomes one kernel, the order, and the programs. Made of a
 * generic graph, whose sizes are the numbers of Sizes, it serves every recording of the same generic form.
 */
export class Structure {
  readonly graph: Graph;
  /** For each node the one, or ~external, that it is a view of (itself, unless it is a view). */
  readonly bases: readonly number[];
  /** See FusionResult.copies. */
  readonly copies: readonly Copy[];
  readonly fused: boolean;
  /** Nodes that get memory: read from outside their kernel, or wanted by the caller. */
  readonly materialized: ReadonlySet<number>;
  /** In an order in which each comes after what it reads from. */
  readonly work: readonly Work[];
  /** Values with memory of their own, which outlives the run: for each the index of its output. */
  readonly owned: ReadonlyMap<number, number>;
  /** These, by the index. */
  readonly ownedNodes: readonly number[];
  /** Nodes that the caller may ask for and that lie in such memory, or in an external. */
  readonly results: readonly number[];
  /** The planner's copy of what a reduction reads, by the reduction. */
  readonly copyOf: ReadonlyMap<number, number>;
  /** Slots of the operator table that its kernels have. */
  readonly slots = new Set<number>();
  /** It stays, and with it its slots, for the next computation of its form. */
  kept = false;

  constructor(graph: Graph, fused: boolean) {
    this.graph = graph;
    this.fused = fused;
    // Of what fusion finds out only this stays: there are many structures, and few of them are used for other sizes.
    const { groups, operands, copies } = new Fusion(graph, fused).run();
    this.bases = operands.map(({ base }) => base);
    this.copies = copies;
    this.materialized = this.#materialized(groups);
    this.work = groups.flatMap((group) => this.#work(group));
    const base = (index: number): number => this.bases[index] as number;
    const wanted = [...graph.nodes.keys()].filter((index) => graph.nodes[index]?.alive || graph.nodes[index]?.needed);
    const owned = new Map<number, number>();
    for (const value of wanted.map(base)) {
      if (!isExternal(value) && this.materialized.has(value) && !owned.has(value)) owned.set(value, owned.size);
    }
    this.owned = owned;
    this.ownedNodes = [...owned.keys()];
    this.results = wanted.filter((index) => isExternal(base(index)) || owned.has(base(index)));
    this.copyOf = new Map(copies.map(({ reader }, i) => [reader, graph.nodes.length + i]));
  }

  dtype(ref: number): DType | undefined {
    if (isExternal(ref)) return this.graph.externals[~ref]?.dtype;
    return this.graph.nodes[ref]?.dtype ?? this.copies[ref - this.graph.nodes.length]?.dtype;
  }

  /** Its kernels may have other slots from now on. */
  forgetSlots(): void {
    for (const work of this.work) if (work.kind === 'kernel') for (const variant of work.kernel.variants) variant.slot = undefined;
    this.slots.clear();
  }

  #materialized(groups: FusionResult['groups']): Set<number> {
    const { graph, bases } = this;
    const result = new Set<number>();
    const read = (ref: number): void => {
      if (!isExternal(ref)) result.add(ref);
    };
    const base = (ref: number): number => (isExternal(ref) ? ref : (bases[ref] as number));
    for (const group of groups) {
      if (group.kind === 'program') {
        for (const member of group.members) for (const arg of member.args) if ('access' in arg) read(arg.access.ref);
      } else if (group.kind === 'copy') {
        read(group.source.base);
        result.add(group.node);
      } else {
        for (const ref of (graph.nodes[group.node] as GraphNode).inputs) read(base(ref));
        result.add(group.node);
      }
    }
    graph.nodes.forEach((node, index) => {
      if (node.needed) read(base(index));
      if (node.output > 0) result.add(index);
    });
    return result;
  }

  #work(group: Group): Work[] {
    if (group.kind === 'fixed') return [{ kind: 'fixed', node: group.node }];
    if (group.kind === 'copy') return [{ kind: 'copy', node: group.node }];
    const { materialized, graph } = this;
    const isOutput = (node: number): boolean => materialized.has(node);
    // Sizes of 0 are the same in every recording that it serves.
    if (group.members.every(({ node }) => !isOutput(node) || graph.nodes[node]?.info.size === 0)) return [];
    const kernel = new Kernel(group, graph, (ref) => this.dtype(ref) as DType, isOutput);
    return [{ kind: 'kernel', kernel }];
  }
}

/** The sizes that a structure is planned for. */
export interface Instance {
  readonly structure: Structure;
  /** What the structure's numbers stand for; undefined: themselves. */
  readonly sizes: Sizes | undefined;
  /** The shapes of the structure's nodes at these sizes. */
  readonly info: (node: number) => ShapeInfo;
  readonly externals: Graph['externals'];
}
