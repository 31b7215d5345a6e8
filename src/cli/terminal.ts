/** What the commands print, and where: results on one stream, progress on stderr, neither in the other's way. */
import type { Writable } from 'node:stream';

/** The width of text is counted in code points: close enough for a table, and never cuts a character in two. */
export function truncate(text: string, width: number): string {
  const characters = [...text];
  return characters.length <= width ? text : `${characters.slice(0, Math.max(0, width - 1)).join('')}…`;
}

/** Control characters of a text file must not reach the terminal as commands. */
export function printable(text: string): string {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, ' ');
}

/** A table with left-aligned columns but for those named in `right`. */
export function table(header: readonly string[], rows: readonly (readonly string[])[], right: readonly number[] = []): string {
  const lines = [header, ...rows];
  const widths = header.map((_, column) => Math.max(...lines.map((line) => [...(line[column] ?? '')].length)));
  const format = (line: readonly string[]) =>
    line
      .map((cell, column) => {
        const padding = ' '.repeat((widths[column] as number) - [...cell].length);
        return right.includes(column) ? padding + cell : cell + padding;
      })
      .join('  ')
      .trimEnd();
  return [format(header), format(widths.map((width) => '-'.repeat(width))), ...rows.map(format)].join('\n');
}

/** Breaks a text into lines of at most `width`, at spaces where there are any. */
export function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  let line = '';
  for (const word of text.split(' ')) {
    let rest = word;
    if (line !== '' && [...line].length + 1 + [...rest].length > width) {
      lines.push(line);
      line = '';
    }
    while ([...rest].length > width) {
      const characters = [...rest];
      lines.push(characters.slice(0, width).join(''));
      rest = characters.slice(width).join('');
    }
    line = line === '' ? rest : `${line} ${rest}`;
  }
  if (line !== '') lines.push(line);
  return lines;
}

/** `quiet` shows nothing, `lines` a line now and then (for logs), `bar` one line that is drawn again and again. */
export type ProgressStyle = 'quiet' | 'lines' | 'bar';

const BAR_WIDTH = 24;

/** The width to write for: that of the terminal (some claim to have none), else one that reads well. */
export function widthOf(stream: { columns?: number }): number {
  return stream.columns || 100;
}

/** How far the work has come, on stderr. */
export class Progress {
  readonly #label: string;
  readonly #total: number;
  readonly #style: ProgressStyle;
  readonly #stream: Writable & { columns?: number };
  readonly #started = performance.now();
  #drawnMs = -Infinity;
  #drawn = false;
  #tenths = 0;

  constructor(label: string, total: number, style: ProgressStyle, stream: Writable & { columns?: number } = process.stderr) {
    this.#label = label;
    this.#total = total;
    this.#style = style;
    this.#stream = stream;
  }

  update(done: number): void {
    if (this.#style === 'quiet' || this.#total === 0) return;
    const now = performance.now();
    const rate = done / Math.max(1e-3, (now - this.#started) / 1000);
    if (this.#style === 'lines') {
      // One line for each tenth: a log stays short however long the text.
      const tenths = Math.floor((done * 10) / this.#total);
      if (tenths <= this.#tenths) return;
      this.#tenths = tenths;
      this.#stream.write(`${this.#label} ${done} of ${this.#total} (${rate.toFixed(0)}/s)\n`);
      return;
    }
    if (done < this.#total && now - this.#drawnMs < 66) return;
    this.#drawnMs = now;
    this.#drawn = true;
    const full = Math.round((done / this.#total) * BAR_WIDTH);
    const left = rate > 0 && done > 0 ? `${Math.ceil((this.#total - done) / rate)} s left` : '';
    const text = `${this.#label} ${'━'.repeat(full)}${'╌'.repeat(BAR_WIDTH - full)} ${done}/${this.#total}  ${rate.toFixed(0)}/s  ${left}`;
    this.#stream.write(`\r\x1b[2K${truncate(text, widthOf(this.#stream) - 1)}`);
  }

  /** Takes the bar away, so that a line can be printed in its place. */
  clear(): void {
    if (this.#drawn) this.#stream.write('\r\x1b[2K');
    this.#drawn = false;
    this.#drawnMs = -Infinity;
  }
}

export function progressStyle(quiet: boolean): ProgressStyle {
  if (quiet) return 'quiet';
  return process.stderr.isTTY ? 'bar' : 'lines';
}
