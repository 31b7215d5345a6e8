import { GpuosError } from '../errors.ts';
import type { Shape } from '../ops/define.ts';
import { reducedAxes } from '../ops/reduction.ts';
import { type Access, boundaries, collapse, columnsAtOneStride, mergeBoundaries } from './access.ts';
import { MAX_OUTER_RANK } from './emission.ts';
import { type Graph, type GraphNode, isExternal } from './graph.ts';
import { shapeInfo, type ShapeInfo } from './shape-info.ts';
import { broadcastStrides, composeView, isContiguous, type View } from './view.ts';

/**
 * Fusion: which nodes of a graph become one kernel.
 *
 * A program group computes over a space of rows x columns. A node in it is FULL (a value an element)
 * or ROW (a value a row: a reduction over the columns, or made from such). Until a reduction or a
 * broadcast fixes the number of columns, a group is just a run of elements. Nodes are taken in order;
 * each joins the groups of its producers where the space allows it and no cycle arises, and joins
 * those groups with each other.
 */
export interface ProgramGroup {
  readonly kind: 'program';
  readonly members: Member[];
  readonly rows: number;
  /** undefined: a plain run of `rows` elements, all FULL. */
  readonly columns: number | undefined;
}

/** An operator with a device function of its own. */
export interface FixedGroup {
  readonly kind: 'fixed';
  readonly node: number;
}

/** Gives a view of another value contiguous memory. */
export interface CopyGroup {
  readonly kind: 'copy';
  readonly node: number;
  readonly source: Operand;
}

export type Group = ProgramGroup | FixedGroup | CopyGroup;

/** What a member reads: a member of the same group, or memory. */
export type Argument = { readonly member: number } | { readonly access: Access };

export interface Member {
  readonly node: number;
  full: boolean;
  readonly args: readonly Argument[];
}

/** A value as an operator's input: the node or external whose memory it is, and how it lies there. */
export interface Operand {
  readonly base: number;
  readonly info: ShapeInfo;
  readonly view: View;
}

export interface FusionResult {
  readonly groups: readonly Group[];
  /** For each node the memory that it is a view of (itself, unless it is a view). */
  readonly operands: readonly Operand[];
  /** Values added by the planner, numbered on from the graph's nodes: contiguous copies of what reductions read, and for which node each is. */
  readonly copies: readonly Copy[];
}

export interface Copy {
  readonly info: ShapeInfo;
  readonly dtype: GraphNode['dtype'];
  readonly reader: number;
}

interface Draft {
  rows: number;
  columns: number | undefined;
  members: Member[];
  boundaries: number[];
  /** Groups that this one reads from, by id; ids are followed through #merged. */
  dependencies: Set<number>;
  fixed: number | undefined;
  copy: Operand | undefined;
}

const MAX_MEMBERS = 300;

/** Dimensions that the rows of a space fall into: without a number of columns, the innermost dimension is the columns. */
function outerRank(bounds: readonly number[], rows: number, columns: number | undefined): number {
  if (columns === undefined) return bounds.length;
  return bounds.filter((bound) => bound > columns).length + (rows > 1 ? 1 : 0);
}

/** How an operand is read under `dims`, to which it broadcasts. */
export function accessOf(operand: Operand, dims: Shape): Access {
  // A reduction of no elements: sizes of 0 would divide nothing.
  if (operand.info.size === 0) return { ref: operand.base, offset: 0, dims: [], strides: [] };
  if (operand.info.dims === dims && operand.view.strides === operand.info.strides) {
    return { ref: operand.base, offset: operand.view.offset, ...operand.info.inOrder };
  }
  const strides = broadcastStrides(operand.info.dims, operand.view.strides, dims);
  return { ref: operand.base, offset: operand.view.offset, ...collapse(dims, strides) };
}

/** What a reduction reads: its operand, turned so that the reduced dimensions come last, unless they do (`trailing`). */
export function reductionOf(node: GraphNode, operand: Operand): { operand: Operand; columns: number; trailing: boolean } {
  const { dims } = operand.info;
  // argmax and argmin have one axis, the others a list.
  const { axis } = node.attributes;
  const { axes } = reducedAxes(node.definition.name, dims, axis === undefined ? node.attributes : { axes: [axis as number] });
  const kept = dims.map((_, axis) => axis).filter((axis) => !axes.includes(axis));
  const columns = axes.reduce((product, axis) => product * (dims[axis] as number), 1);
  // Dimensions of size 1 may stand anywhere; otherwise the reduced ones have to be last.
  const trailing = axes.every((axis) => dims[axis] === 1 || kept.every((other) => dims[other] === 1 || other < axis));
  if (trailing) return { operand, columns, trailing };
  const order = [...kept, ...axes];
  const info = shapeInfo(order.map((axis) => dims[axis] as number));
  const view = { strides: order.map((axis) => operand.view.strides[axis] as number), offset: operand.view.offset };
  return { operand: { base: operand.base, info, view }, columns, trailing };
}

export class Fusion {
  readonly #graph: Graph;
  readonly #enabled: boolean;
  readonly #drafts: (Draft | undefined)[] = [];
  /** Group of each node that computes something, after merges. */
  readonly #groupOf: number[] = [];
  readonly #operands: Operand[] = [];
  readonly #copies: Copy[] = [];

  constructor(graph: Graph, enabled: boolean) {
    this.#graph = graph;
    this.#enabled = enabled;
  }

  run(): FusionResult {
    const { nodes } = this.#graph;
    for (let index = 0; index < nodes.length; index++) this.#add(index, nodes[index] as GraphNode);
    return { groups: this.#sorted(), operands: this.#operands, copies: this.#copies };
  }

  #operand(ref: number): Operand {
    if (!isExternal(ref)) return this.#operands[ref] as Operand;
    const external = this.#graph.externals[~ref];
    if (external === undefined) throw new GpuosError('GPUOS_INTERNAL', `A node names external ${~ref}, which is not there.`);
    return {
      base: ref,
      info: external.info,
      view: external.kind === 'storage' ? external.view : external.info.contiguous,
    };
  }

  #add(index: number, node: GraphNode): void {
    const own: Operand = { base: index, info: node.info, view: node.info.contiguous };
    this.#operands[index] = own;
    if (node.output > 0) {
      // A further output lies where its operator's group puts it.
      this.#groupOf[index] = this.#groupOf[node.inputs[0] as number] as number;
      return;
    }
    switch (node.definition.kind) {
      case 'view': {
        const source = this.#operand(node.inputs[0] as number);
        const view = composeView(node.definition.name, node.attributes, source.info, source.view, node.info);
        if (view !== undefined) this.#operands[index] = { base: source.base, info: node.info, view };
        else this.#newGroup(index, { copy: source });
        return;
      }
      case 'map':
        if (node.info.size === 0) this.#addEmpty(index);
        else this.#addMap(index, node);
        return;
      case 'reduce':
        if (node.info.size === 0) this.#addEmpty(index);
        else this.#addReduce(index, node);
        return;
      default:
        this.#newGroup(index, { fixed: index });
    }
  }

  #draft(id: number): Draft {
    return this.#drafts[id] as Draft;
  }

  /** The program group that computes `ref`, if one does. */
  #programOf(ref: number): number | undefined {
    if (isExternal(ref)) return undefined;
    const id = this.#groupOf[ref];
    return id !== undefined && this.#draft(id).members.length > 0 ? id : undefined;
  }

  #newGroup(index: number, what: { fixed?: number; copy?: Operand }): number {
    const dependencies = new Set<number>();
    const refs =
      what.copy === undefined ? (this.#graph.nodes[index] as GraphNode).inputs.map((ref) => this.#operand(ref).base) : [what.copy.base];
    for (const base of refs) if (!isExternal(base)) dependencies.add(this.#groupOf[base] as number);
    const id =
      this.#drafts.push({ rows: 0, columns: undefined, members: [], boundaries: [], dependencies, fixed: what.fixed, copy: what.copy }) - 1;
    this.#groupOf[index] = id;
    return id;
  }

  /** Whether group `from` depends on `on`, directly or through others. */
  #dependsOn(from: number, on: number): boolean {
    const seen = new Set<number>();
    const stack = [from];
    for (let id = stack.pop(); id !== undefined; id = stack.pop()) {
      for (const next of this.#draft(id).dependencies) {
        if (next === on) return true;
        if (!seen.has(next)) {
          seen.add(next);
          stack.push(next);
        }
      }
    }
    return false;
  }

  #addMap(index: number, node: GraphNode): void {
    const operands = node.inputs.map((ref) => this.#operand(ref));
    if (this.#enabled && this.#joinAsItIs(index, node, operands)) return;
    const producers = [...new Set(operands.map((operand) => this.#programOf(operand.base)).filter((id): id is number => id !== undefined))];
    if (this.#enabled && producers.length > 0) {
      if (this.#tryJoin(index, node, operands, producers)) return;
      if (producers.length > 1) {
        for (const id of producers.sort((a, b) => b - a)) if (this.#tryJoin(index, node, operands, [id])) return;
      }
    }
    this.#startProgram(index, operands, node.info.dims, node.info.size, undefined);
  }

  /**
   * What most of recording is, without a look at spaces: a map of the elements of one group in their order, and of externals
   * that have as many or one. The group's space stays what it is, and no cycle can arise.
   */
  #joinAsItIs(index: number, { info }: GraphNode, operands: readonly Operand[]): boolean {
    let group = -1;
    for (const operand of operands) {
      const { base } = operand;
      if (isExternal(base)) {
        if (operand.info !== info && operand.info.size !== 1) return false;
        if (operand.view.strides !== operand.info.strides) return false;
        continue;
      }
      const id = this.#groupOf[base] as number;
      if (operand.info !== info || base >= this.#graph.nodes.length || this.#graph.nodes[base]?.info !== info) return false;
      if (operand.view !== info.contiguous || (group >= 0 && id !== group)) return false;
      group = id;
    }
    if (group < 0) return false;
    const draft = this.#draft(group);
    if (draft.columns !== undefined || draft.members.length === 0 || draft.members.length >= MAX_MEMBERS) return false;
    if (draft.rows !== info.size) return false;
    const args = operands.map(
      (operand): Argument => (isExternal(operand.base) ? { access: accessOf(operand, info.dims) } : { member: operand.base }),
    );
    draft.members.push({ node: index, full: true, args });
    this.#groupOf[index] = group;
    return true;
  }

  /** A value without elements is nobody's work; a group of its own keeps it out of spaces that have some. */
  #addEmpty(index: number): void {
    const id = this.#newGroup(index, {});
    this.#draft(id).members.push({ node: index, full: true, args: [] });
  }

  /** A program group of its own; a node with `columns` is the reduction of its operand over them. */
  #startProgram(index: number, operands: readonly Operand[], dims: Shape, rows: number, columns: number | undefined): void {
    const id = this.#newGroup(index, {});
    const draft = this.#draft(id);
    draft.rows = rows;
    draft.columns = columns;
    const args = operands.map((operand) => ({ access: accessOf(operand, dims) }));
    for (const { access } of args) {
      // Within one node every operand is seen under the same shape, so the boundaries agree.
      draft.boundaries = mergeBoundaries(draft.boundaries, boundaries(access.dims)) as number[];
      if (!isExternal(access.ref)) draft.dependencies.add(this.#groupOf[access.ref] as number);
    }
    if (columns !== undefined && columns > 0 && rows > 1) draft.boundaries = mergeBoundaries(draft.boundaries, [columns]) as number[];
    draft.members.push({ node: index, full: columns === undefined, args });
  }

  /** Columns over which a value of `size` elements, contiguous, is repeated under `dims`; undefined if that is not all that happens. */
  #repeatedColumns(operand: Operand, dims: Shape, total: number): number | undefined {
    const { size } = operand.info;
    if (size === 0 || total % size !== 0) return undefined;
    const columns = total / size;
    const access = collapse(dims, broadcastStrides(operand.info.dims, operand.info.strides, dims));
    if (size === 1) return columns;
    const ok = access.dims.length === 2 && access.strides[1] === 0 && access.dims[1] === columns && access.strides[0] === 1;
    return ok ? columns : undefined;
  }

  #inPlace(operand: Operand): boolean {
    return operand.view.offset === 0 && isContiguous(operand.info, operand.view) && operand.info.size === this.#baseInfo(operand.base).size;
  }

  #baseInfo(base: number): ShapeInfo {
    const node = this.#graph.nodes[base];
    return node === undefined ? (this.#copies[base - this.#graph.nodes.length] as { info: ShapeInfo }).info : node.info;
  }

  /** Puts a map into the union of these groups, if the space of all of them allows it. */
  #tryJoin(index: number, node: GraphNode, operands: readonly Operand[], ids: readonly number[]): boolean {
    const total = node.info.size;
    const { dims } = node.info;
    const inside = operands.map((operand) => ids.includes(this.#programOf(operand.base) ?? -1));
    if (operands.some((operand, i) => inside[i] && !this.#inPlace(operand))) return false;
    let columns: number | undefined;
    for (const id of ids) columns ??= this.#draft(id).columns;
    // Rows of no columns have no linear order to read other operands in.
    if (columns === 0) return false;
    if (columns === undefined) {
      operands.forEach((operand, i) => {
        if (inside[i] && operand.info.size !== total) columns ??= this.#repeatedColumns(operand, dims, total);
      });
      const sizes = new Set(ids.map((id) => this.#draft(id).rows));
      if (columns === undefined && (sizes.size > 1 || !sizes.has(total))) return false;
    }
    for (const full of columns === undefined ? [true] : [true, false]) {
      const rows = full && columns !== undefined ? total / columns : total;
      if (!Number.isInteger(rows)) continue;
      if (this.#place(index, operands, inside, ids, dims, rows, columns, full)) return true;
    }
    return false;
  }

  #place(
    index: number,
    operands: readonly Operand[],
    inside: readonly boolean[],
    ids: readonly number[],
    dims: Shape,
    rows: number,
    columns: number | undefined,
    full: boolean,
  ): boolean {
    const total = rows * (columns ?? 1);
    // What each group's members become in the joint space: as they are, all FULL, or all ROW.
    const asRows = new Map<number, boolean>();
    for (const id of ids) {
      const draft = this.#draft(id);
      if (draft.columns !== undefined) {
        if (draft.columns !== columns || draft.rows !== rows) return false;
        asRows.set(id, false);
      } else if (draft.rows === total) asRows.set(id, false);
      else if (columns !== undefined && draft.rows === rows) asRows.set(id, true);
      else return false;
    }
    const isFull = (id: number, base: number): boolean =>
      !(asRows.get(id) as boolean) && (this.#draft(id).members.findLast((member) => member.node === base) as Member).full;
    const args: Argument[] = [];
    let bounds: number[] | undefined = columns !== undefined && columns > 0 && rows > 1 ? [columns] : [];
    const dependencies = new Set<number>();
    for (let i = 0; i < operands.length; i++) {
      const operand = operands[i] as Operand;
      if (inside[i]) {
        const id = this.#programOf(operand.base) as number;
        const producerFull = isFull(id, operand.base);
        if (producerFull && !(full && operand.info.size === total)) return false;
        if (!producerFull && full && this.#repeatedColumns(operand, dims, total) !== columns) return false;
        if (!producerFull && !full && operand.info.size !== rows) return false;
        args.push({ member: operand.base });
        continue;
      }
      const access = accessOf(operand, dims);
      if (full && columns !== undefined && !columnsAtOneStride(access, columns)) return false;
      bounds = bounds && mergeBoundaries(bounds, this.#scaled(access, full ? 1 : (columns as number)));
      args.push({ access });
      if (!isExternal(operand.base)) dependencies.add(this.#groupOf[operand.base] as number);
    }
    // A node that joins one group as it stands is its newest member: nothing has to be copied.
    const [first] = ids as [number];
    const sole = ids.length === 1 && !(asRows.get(first) as boolean);
    const members: Member[] = sole ? this.#draft(first).members : [];
    for (const id of ids) {
      const draft = this.#draft(id);
      const rowsNow = asRows.get(id) as boolean;
      // Boundaries of a group whose elements become rows lie `columns` further out.
      const scale = rowsNow ? (columns as number) : 1;
      bounds = bounds && mergeBoundaries(bounds, scale === 0 ? [] : draft.boundaries.map((bound) => bound * scale));
      if (columns !== undefined && draft.columns === undefined && !rowsNow && !this.#columnsFit(draft, columns)) return false;
      if (!sole) for (const member of draft.members) members.push(rowsNow ? { ...member, full: false } : member);
      for (const dependency of draft.dependencies) {
        // One of them reads what another writes from memory: in one kernel it would read before that is written.
        if (ids.includes(dependency)) return false;
        dependencies.add(dependency);
      }
    }
    if (bounds === undefined || members.length >= MAX_MEMBERS || outerRank(bounds, rows, columns) > MAX_OUTER_RANK) return false;
    // A cycle arises when something outside that the union reads depends on a part of it.
    for (const dependency of dependencies) for (const id of ids) if (dependency === id || this.#dependsOn(dependency, id)) return false;
    members.push({ node: index, full, args });
    if (sole) {
      const draft = this.#draft(first);
      draft.rows = rows;
      draft.columns = columns;
      draft.boundaries = bounds;
      draft.dependencies = dependencies;
      this.#groupOf[index] = first;
      return true;
    }
    members.sort((a, b) => a.node - b.node);
    this.#unite(ids, { rows, columns, members, boundaries: bounds, dependencies, fixed: undefined, copy: undefined });
    return true;
  }

  #scaled(access: Access, scale: number): number[] {
    return scale === 0 ? [] : boundaries(access.dims).map((bound) => bound * scale);
  }

  #columnsFit(draft: Draft, columns: number): boolean {
    return draft.members.every((member) => member.args.every((arg) => 'member' in arg || columnsAtOneStride(arg.access, columns)));
  }

  /** Replaces the groups by their union, under the first one's id. */
  #unite(ids: readonly number[], union: Draft): void {
    const first = ids[0] as number;
    const gone = new Set(ids.slice(1));
    this.#drafts[first] = union;
    for (const id of gone) this.#drafts[id] = undefined;
    for (const member of union.members) this.#groupOf[member.node] = first;
    if (gone.size === 0) return;
    for (const draft of this.#drafts) {
      if (draft === undefined) continue;
      for (const id of gone) {
        if (draft.dependencies.delete(id)) draft.dependencies.add(first);
      }
    }
  }

  #addReduce(index: number, node: GraphNode): void {
    const reduction = reductionOf(node, this.#operand(node.inputs[0] as number));
    const { columns, trailing } = reduction;
    let { operand } = reduction;
    const rows = node.info.size;
    if (trailing && this.#enabled && columns > 0 && rows > 0) {
      const id = this.#programOf(operand.base);
      if (id !== undefined && this.#inPlace(operand) && this.#reduceIn(index, id, operand, rows, columns)) return;
    }
    const access = accessOf(operand, operand.info.dims);
    if (!columnsAtOneStride(access, columns)) operand = this.#copied(operand, index, node);
    this.#startProgram(index, [operand], operand.info.dims, rows, columns);
  }

  /** Adds a reduction to the group that makes its operand, if the operand is FULL there and the columns agree. */
  #reduceIn(index: number, id: number, operand: Operand, rows: number, columns: number): boolean {
    const draft = this.#draft(id);
    const producer = draft.members.find((member) => member.node === operand.base) as Member;
    if (!producer.full || draft.rows * (draft.columns ?? 1) !== rows * columns || draft.members.length >= MAX_MEMBERS) return false;
    if (draft.columns === undefined) {
      if (!this.#columnsFit(draft, columns)) return false;
      const bounds = mergeBoundaries(draft.boundaries, rows > 1 ? [columns] : []);
      if (bounds === undefined || outerRank(bounds, rows, columns) > MAX_OUTER_RANK) return false;
      draft.boundaries = bounds;
      draft.rows = rows;
      draft.columns = columns;
    } else if (draft.columns !== columns) return false;
    draft.members.push({ node: index, full: false, args: [{ member: operand.base }] });
    this.#groupOf[index] = id;
    return true;
  }

  /** The operand in contiguous memory of its own. */
  #copied(operand: Operand, reader: number, node: GraphNode): Operand {
    const index = this.#graph.nodes.length + this.#copies.length;
    const dtype = isExternal(operand.base)
      ? (this.#graph.externals[~operand.base]?.dtype ?? node.dtype)
      : (this.#graph.nodes[operand.base]?.dtype ?? node.dtype);
    this.#copies.push({ info: operand.info, dtype, reader });
    const id =
      this.#drafts.push({
        rows: 0,
        columns: undefined,
        members: [],
        boundaries: [],
        dependencies: new Set(),
        fixed: undefined,
        copy: operand,
      }) - 1;
    if (!isExternal(operand.base)) this.#draft(id).dependencies.add(this.#groupOf[operand.base] as number);
    this.#groupOf[index] = id;
    this.#copyOfGroup.set(id, index);
    return { base: index, info: operand.info, view: operand.info.contiguous };
  }

  readonly #copyOfGroup = new Map<number, number>();

  /** The groups, each after those that it reads from. */
  #sorted(): Group[] {
    const order: Group[] = [];
    const done = new Set<number>();
    const visit = (id: number): void => {
      if (done.has(id)) return;
      done.add(id);
      const draft = this.#draft(id);
      for (const dependency of draft.dependencies) visit(dependency);
      order.push(this.#finished(id, draft));
    };
    this.#drafts.forEach((draft, id) => {
      if (draft !== undefined) visit(id);
    });
    return order;
  }

  #finished(id: number, draft: Draft): Group {
    if (draft.fixed !== undefined) return { kind: 'fixed', node: draft.fixed };
    if (draft.copy !== undefined) return { kind: 'copy', node: this.#copyOfGroup.get(id) ?? this.#groupOf.indexOf(id), source: draft.copy };
    return { kind: 'program', members: draft.members, rows: draft.rows, columns: draft.columns };
  }
}
