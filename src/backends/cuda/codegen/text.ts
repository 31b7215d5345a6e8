import type { ComputeType, DType } from '../../../ops/dtype.ts';

/** The C++ type of a node's value. */
export const VALUE_TYPES: Readonly<Record<ComputeType, string>> = { float32: 'float', int32: 'int32_t', bool: 'bool' };
/** The C++ type of an element in memory: a bool is an int32 0 or 1. */
export const ELEMENT_TYPES: Readonly<Record<DType, string>> = {
  float32: 'float',
  int32: 'int32_t',
  bool: 'int32_t',
  float16: 'Float16',
  bfloat16: 'Bfloat16',
};

const LEAST_NORMAL = 2 ** -126;

/** The literal of a value of this dtype. */
export function literal(value: number, dtype: ComputeType): string {
  if (dtype === 'bool') return value !== 0 ? 'true' : 'false';
  if (dtype === 'int32') {
    const word = value | 0;
    return word === -(2 ** 31) ? '(-2147483647 - 1)' : String(word);
  }
  const x = Math.fround(value);
  if (Number.isNaN(x)) return 'not_a_number()';
  if (!Number.isFinite(x)) return x > 0 ? 'infinity()' : '-infinity()';
  if (x !== 0 && Math.abs(x) < LEAST_NORMAL) {
    const bits = new Uint32Array(new Float32Array([x]).buffer)[0] as number;
    return `float_of(0x${bits.toString(16)}u)`;
  }
  if (Object.is(x, -0)) return '-0.0f';
  const digits = String(x);
  return `${/[.e]/.test(digits) ? digits : `${digits}.0`}f`;
}

/** Lines of text with an indentation. */
export class Lines {
  readonly #lines: string[] = [];
  #depth = 0;

  line(text: string): void {
    this.#lines.push(text === '' ? '' : '  '.repeat(this.#depth) + text);
  }

  /** A line of the preprocessor, which is not indented. */
  directive(text: string): void {
    this.#lines.push(text);
  }

  open(text: string): void {
    this.line(`${text} {`);
    this.#depth++;
  }

  close(): void {
    this.#depth--;
    this.line('}');
  }

  /** Ends a block and begins the next one of the same statement. */
  reopen(text: string): void {
    this.#depth--;
    this.open(`} ${text}`);
  }

  indent(write: () => void): void {
    this.#depth++;
    write();
    this.#depth--;
  }

  toString(): string {
    return `${this.#lines.join('\n')}\n`;
  }
}
