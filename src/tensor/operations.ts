import { checkAttributes } from '../ops/attributes.ts';
import type { Attributes, OperatorDefinition } from '../ops/define.ts';
import { operatorByName } from '../ops/index.ts';
import { MAPS } from '../ops/map.ts';
import type { MapName } from '../ops/program.ts';
import { dtypeCode } from './graph.ts';

export const NO_ATTRIBUTES: Attributes = Object.freeze({});

/** Attributes that the shape of the result tells as well. */
const TOLD_BY_SHAPE: Readonly<Record<string, string>> = { reshape: 'shape', expand: 'shape', slice: 'size', 'strided-slice': 'end' };

/** An operator with its attributes, which are frozen. Equal ones are one object, so that a recording can name them by a number. */
export class Operation {
  readonly id: number;
  readonly definition: OperatorDefinition;
  readonly attributes: Attributes;
  readonly isProduct: boolean;
  readonly #operations: Operations;
  #form: number | undefined;

  constructor(id: number, definition: OperatorDefinition, attributes: Attributes, operations: Operations) {
    this.id = id;
    this.definition = definition;
    this.attributes = attributes;
    this.isProduct = definition.name === 'matmul';
    this.#operations = operations;
  }

  /** A number like `id`, the same for operations that differ only in sizes which the shape of the result tells as well. */
  get form(): number {
    this.#form ??= this.#told();
    return this.#form;
  }

  #told(): number {
    const told = TOLD_BY_SHAPE[this.definition.name];
    return told === undefined
      ? this.id
      : this.#operations.form(`${this.definition.name} ${JSON.stringify({ ...this.attributes, [told]: undefined })}`);
  }
}

/** Operations known by their attributes; more are forgotten. A program whose attributes change at every call makes a new one each time. */
const MAX_KNOWN = 65_536;

export class Operations {
  readonly #plain = new Map<OperatorDefinition, Operation>();
  /** By the operator and a text of the attributes. */
  readonly #known = new Map<string, Operation>();
  /** By the caller's object, if that cannot change. */
  #frozen = new WeakMap<Attributes, Map<OperatorDefinition, Operation>>();
  #ids = 0;

  readonly #forms = new Map<string, number>();

  /** The number of a form. */
  form(key: string): number {
    let form = this.#forms.get(key);
    if (form === undefined) {
      if (this.#forms.size >= MAX_KNOWN) this.#forms.clear();
      form = this.#ids++;
      this.#forms.set(key, form);
    }
    return form;
  }

  /** The operator without attributes. */
  plain(definition: OperatorDefinition): Operation {
    let operation = this.#plain.get(definition);
    if (operation === undefined) {
      operation = new Operation(this.#ids++, definition, NO_ATTRIBUTES, this);
      this.#plain.set(definition, operation);
    }
    return operation;
  }

  /**
   * The operator with these attributes, checked, and with their defaults. A frozen object is taken to stay as
   * it is, its lists as well, and is checked once.
   * @throws GPUOS_BAD_ATTRIBUTE
   */
  of(definition: OperatorDefinition, attributes: Attributes): Operation {
    if (attributes === NO_ATTRIBUTES && definition.attributes === undefined) return this.plain(definition);
    const frozen = Object.isFrozen(attributes);
    const before = frozen ? this.#frozen.get(attributes)?.get(definition) : undefined;
    if (before !== undefined) return before;
    const given = checkAttributes(definition, attributes);
    const key = `${this.plain(definition).id} ${JSON.stringify(given, encodeNumber)}`;
    let operation = this.#known.get(key);
    if (operation === undefined) {
      if (this.#known.size >= MAX_KNOWN) {
        // Numbers are not given twice, so what is recorded or planned under an old one stays right.
        this.#known.clear();
        this.#frozen = new WeakMap();
      }
      // A copy: the plan is made later, and the caller may have written its lists by then.
      const own = Object.entries(given).map(([name, value]) => [name, Array.isArray(value) ? Object.freeze([...value]) : value]);
      operation = new Operation(this.#ids++, definition, Object.freeze(Object.fromEntries(own)), this);
      this.#known.set(key, operation);
    }
    if (frozen) {
      let byDefinition = this.#frozen.get(attributes);
      if (byDefinition === undefined) {
        byDefinition = new Map();
        this.#frozen.set(attributes, byDefinition);
      }
      byDefinition.set(definition, operation);
    }
    return operation;
  }
}

/** Those of this process. */
export const operations = new Operations();

/** An operator of the library, with what the quick ways need. */
export interface Named {
  readonly definition: OperatorDefinition;
  readonly plain: Operation;
  /** Inputs of a map without attributes; 0: it has no quick way. */
  readonly quickInputs: number;
  /** Of such a map: the dtypes that its inputs may have, as bits, and whether its result is bool rather than of theirs. */
  readonly accepted: number;
  readonly toBool: boolean;
}

const byName = new Map<string, Named>();

/** The operator of this name. @throws GPUOS_UNKNOWN_OPERATOR */
export function named(name: string): Named {
  let known = byName.get(name);
  if (known === undefined) {
    const definition = operatorByName(name);
    const rule = definition.kind === 'map' && definition.attributes === undefined ? MAPS[name as MapName] : undefined;
    known = {
      definition,
      plain: operations.plain(definition),
      quickInputs: rule?.inputs.length ?? 0,
      accepted: rule?.operands.reduce((bits, dtype) => bits | (1 << dtypeCode(dtype)), 0) ?? 0,
      toBool: rule?.result === 'bool',
    };
    byName.set(name, known);
  }
  return known;
}

/** JSON has no infinities, no NaN and no -0, but attributes do, and different attributes must not look alike. */
function encodeNumber(_: string, value: unknown): unknown {
  return typeof value === 'number' && (!Number.isFinite(value) || Object.is(value, -0)) ? `#${Object.is(value, -0) ? '-0' : value}` : value;
}
