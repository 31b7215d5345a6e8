import { elementBytes } from '../ops/dtype.ts';
import { type Program, programLayout } from '../ops/program.ts';

/** How one pointer of a program is used. */
interface Operand {
  readonly bytes: 2 | 4;
  /** From one column to the next, in elements; undefined: the word at `columnWord` says it. */
  readonly column: number | undefined;
  readonly columnWord: number;
  /** Where its row strides begin among the words; -1: it has none, and its elements are the rows. */
  readonly rowWord: number;
}

/**
 * What a task of a program touches of each of its pointers, as its words say: the layout is that of `programLayout`. Made
 * once for an operator, so that a task costs a few additions.
 */
export class Extents {
  readonly pointers: number;
  readonly words: number;
  readonly inputs: number;
  readonly #outerRank: number;
  /** A reduction over columns that tiles would split. */
  readonly #oneTile: boolean;
  readonly #operands: readonly Operand[];
  /** Elements before and after the pointer that `measure` found last. */
  first = 0;
  last = -1;

  constructor(program: Program) {
    const { inputs, outputs, outerRank, nodes } = program;
    this.pointers = inputs.length + outputs.length;
    this.words = programLayout(program).words;
    this.inputs = inputs.length;
    this.#outerRank = outerRank;
    this.#oneTile = outerRank === 0 && nodes.some(({ kind }) => kind === 'reduce');
    const full = outputs.filter(({ space }) => space === 'full').length;
    let rowWord = 3 + outerRank;
    let columnWord = outerRank === 0 ? 1 : rowWord + outerRank * (inputs.length + full);
    const rows = (): number => {
      rowWord += outerRank;
      return rowWord - outerRank;
    };
    this.#operands = [
      ...inputs.map(({ dtype, columnStride }) => {
        const strided = columnStride === 'strided';
        const column = strided ? undefined : columnStride;
        return { bytes: elementBytes(dtype), column, columnWord: strided ? columnWord++ : -1, rowWord: rows() };
      }),
      ...outputs.map(({ dtype, space }) =>
        space === 'full'
          ? { bytes: elementBytes(dtype), column: 1, columnWord: -1, rowWord: rows() }
          : { bytes: elementBytes(dtype), column: 0, columnWord: -1, rowWord: -1 },
      ),
    ];
  }

  elementBytes(pointer: number): number {
    return (this.#operands[pointer] as Operand).bytes;
  }

  /** What is wrong with the words that say how much there is to do; undefined: nothing. */
  refusal(words: ArrayLike<number>, tiles: number): string | undefined {
    const k = this.#outerRank;
    if (!isCount(words[0])) return `word 0, the number of elements, is ${String(words[0])}`;
    if (this.#oneTile && tiles > 1) return `tiles is ${tiles}, and it reduces all elements to one`;
    if (k === 0) return undefined;
    const [rows, units] = [words[1], words[2]] as [number, number];
    let product = 1;
    for (let i = 0; i < k; i++) {
      if (!isCount(words[3 + i])) return `word ${3 + i}, a dimension, is ${String(words[3 + i])}`;
      product *= words[3 + i] as number;
    }
    if (!isCount(rows) || rows !== product) return `word 1, the number of rows, is ${String(rows)}, and its dimensions make ${product}`;
    if (!isCount(units) || units === 0 || rows % units !== 0) return `word 2, the number of units, is ${String(units)} for ${rows} rows`;
    return undefined;
  }

  /**
   * Finds the `first` and the `last` element that a task with these words touches, counted from pointer `pointer` on; `last`
   * is before `first` where it touches none.
   */
  measure(pointer: number, words: ArrayLike<number>): void {
    const { column, columnWord, rowWord } = this.#operands[pointer] as Operand;
    const k = this.#outerRank;
    const columns = words[0] as number;
    this.first = 0;
    this.last = -1;
    // One element for all columns is touched also where there are none: what a reduction over nothing gives is written.
    if ((columns === 0 && column !== 0) || (k > 0 && words[1] === 0)) return;
    this.last = 0;
    if (column !== 0) this.#stretch(columns, column ?? (words[columnWord] as number) | 0);
    if (k === 0) return;
    if (rowWord < 0) this.#stretch(words[1] as number, 1);
    else for (let i = 0; i < k; i++) this.#stretch(words[3 + i] as number, (words[rowWord + i] as number) | 0);
  }

  #stretch(count: number, stride: number): void {
    if (stride < 0) this.first += (count - 1) * stride;
    else this.last += (count - 1) * stride;
  }
}

/** What fits an int32 and is not negative. */
function isCount(word: number | undefined): boolean {
  return word !== undefined && word >= 0 && word <= 0x7fff_ffff;
}
