import { PassThrough } from 'node:stream';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { printable, Progress, table, truncate, wrap } from './terminal.ts';

describe('wrap', () => {
  it('keeps every word, and no line is too long', () => {
    fc.assert(
      fc.property(fc.array(fc.string({ unit: 'grapheme-ascii', maxLength: 12 })), fc.integer({ min: 1, max: 20 }), (words, width) => {
        const text = words.join(' ').replace(/\s+/g, ' ').trim();
        const lines = wrap(text, width);
        for (const line of lines) expect([...line].length).toBeLessThanOrEqual(width);
        expect(lines.join('').replaceAll(' ', '')).toBe(text.replaceAll(' ', ''));
      }),
    );
  });
});

describe('table', () => {
  it('aligns columns', () => {
    expect(
      table(
        ['name', 'value'],
        [
          ['é', '1'],
          ['long name', '22'],
        ],
        [1],
      ),
    ).toBe(['name       value', '---------  -----', 'é              1', 'long name     22'].join('\n'));
  });
});

describe('truncate and printable', () => {
  it('cut between characters and let no control character through', () => {
    expect(truncate('whales', 6)).toBe('whales');
    expect(truncate('whales', 5)).toBe('whal…');
    expect(truncate('😀😀😀', 2)).toBe('😀…');
    expect(printable('a\x1b[31mb\u202ec\td')).toBe('a [31mb c d');
  });
});

describe('Progress', () => {
  const written = (style: 'quiet' | 'lines' | 'bar') => {
    const stream = new PassThrough({ encoding: 'utf8' });
    const progress = new Progress('indexing', 100, style, stream);
    for (let done = 1; done <= 100; done++) progress.update(done);
    progress.clear();
    return (stream.read() as string | null) ?? '';
  };

  it('says nothing when quiet', () => {
    expect(written('quiet')).toBe('');
  });

  it('writes ten plain lines to a log', () => {
    const lines = written('lines').trimEnd().split('\n');
    expect(lines).toHaveLength(10);
    expect(lines.at(-1)).toMatch(/^indexing 100 of 100 \(\d+\/s\)$/);
    expect(lines.join('')).not.toContain('\x1b');
  });

  it('draws one line over and over on a terminal, and takes it away', () => {
    const bar = written('bar');
    expect(bar).not.toContain('\n');
    expect(bar).toContain('100/100');
    expect(bar.endsWith('\r\x1b[2K')).toBe(true);
  });
});
