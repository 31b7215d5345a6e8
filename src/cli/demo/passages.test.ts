import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { drawEvenly, MAX_PASSAGE_LENGTH, passagesOf, segmentText } from './passages.ts';

const sentences = (text: string) => segmentText(text).map(({ text }) => text);

describe('segmentText', () => {
  it('ends sentences at full stops, question and exclamation marks', () => {
    expect(sentences('Call me Ishmael. Why? It matters! Or so… He left.')).toEqual([
      'Call me Ishmael.',
      'Why?',
      'It matters!',
      'Or so…',
      'He left.',
    ]);
  });

  it('keeps closing quotes with the sentence that they close', () => {
    expect(sentences('“Avast!” cried he. "Who goes?" (Nobody.) He slept.')).toEqual([
      '“Avast!” cried he.',
      '"Who goes?"',
      '(Nobody.)',
      'He slept.',
    ]);
  });

  it.each([
    'Mr. Starbuck and Capt. Ahab met Dr. Bunger at St. Elmo.',
    'See fig. 3 and vol. 2, pp. 7 ff., e.g. Whales, i.e. Leviathans.',
    'J. Ross Browne wrote it with T. S. Eliot.',
    'It cost 3.50 at 4.15 in the morning.',
    'He waited... and waited.',
    '1. Loomings',
    'Visit example.com today.',
    'He said “Stop!” and went on.',
  ])('leaves whole: %s', (sentence) => {
    expect(sentences(sentence)).toEqual([sentence]);
  });

  it('ends a sentence after an abbreviation when a capital follows, and after the pronoun', () => {
    expect(sentences('They sold oil, bone, etc. Nobody came at 5 p.m. then.')).toEqual([
      'They sold oil, bone, etc.',
      'Nobody came at 5 p.m. then.',
    ]);
    expect(sentences('It was I. You knew.')).toEqual(['It was I.', 'You knew.']);
    expect(sentences('He said no. Then he left.')).toEqual(['He said no.', 'Then he left.']);
    expect(sentences('He was born in 1819. She was not.')).toEqual(['He was born in 1819.', 'She was not.']);
  });

  it('joins broken lines, with any kind of line end', () => {
    for (const end of ['\n', '\r\n', '\r', '\u2028']) {
      expect(sentences(`Call me${end}Ishmael. Some${end}years ago.`)).toEqual(['Call me Ishmael.', 'Some years ago.']);
    }
  });

  it('takes chapter titles and lines in capitals for headings', () => {
    const text =
      'CHAPTER 1. Loomings.\r\n\r\nCall me Ishmael.\r\n\r\nTHE SERMON\r\n\r\nFather Mapple rose.\n\nEpilogue\n\nOne did survive.';
    expect(segmentText(text)).toEqual([
      { kind: 'heading', text: 'CHAPTER 1. Loomings.', section: 'CHAPTER 1. Loomings.' },
      { kind: 'sentence', text: 'Call me Ishmael.', section: 'CHAPTER 1. Loomings.' },
      { kind: 'heading', text: 'THE SERMON', section: 'THE SERMON' },
      { kind: 'sentence', text: 'Father Mapple rose.', section: 'THE SERMON' },
      { kind: 'heading', text: 'Epilogue', section: 'Epilogue' },
      { kind: 'sentence', text: 'One did survive.', section: 'Epilogue' },
    ]);
  });

  it('does not take a shout or a sentence about a part for a heading', () => {
    expect(segmentText('Part of the crew slept on deck, and so did I.')[0]?.kind).toBe('sentence');
    expect(segmentText('* * *')).toEqual([]);
  });

  it('ends sentences of scripts without spaces', () => {
    expect(sentences('鯨だ。大きい！本当？')).toEqual(['鯨だ。', '大きい！', '本当？']);
  });

  it('breaks what is too long at a clause, a space, or between characters', () => {
    const clause = `${'word '.repeat(60)}end; ${'more '.repeat(60)}end.`;
    expect(sentences(clause)[0]).toMatch(/end;$/);
    const solid = 'x'.repeat(1000);
    expect(sentences(solid).map(({ length }) => length)).toEqual([400, 400, 200]);
    const emoji = `a${'😀'.repeat(500)}`;
    const found = sentences(emoji);
    // Emoji are no letters; what is kept is whole.
    for (const piece of found) expect(piece).not.toMatch(/\p{Surrogate}/u);
    const rare = `a${'𠀀'.repeat(500)}`;
    expect(sentences(rare).join('')).toBe(rare);
  });

  it('takes time linear in the text', () => {
    const started = performance.now();
    segmentText('.'.repeat(300_000));
    segmentText('A. '.repeat(100_000));
    segmentText('a'.repeat(1_000_000));
    segmentText(`${'"'.repeat(200_000)}`);
    expect(performance.now() - started).toBeLessThan(3000);
  });
});

describe('any text', () => {
  const words = fc.constantFrom(
    'Mr.',
    'etc.',
    'e.g.',
    'I',
    'whale',
    'Whale',
    'CHAPTER',
    '1.',
    'U.S.',
    '。',
    '鯨',
    '—',
    '“',
    '”',
    '...',
    '!',
    '?',
    '\n',
    '\n\n',
    '\r\n',
    ' ',
    '\t',
    '\u00a0',
    'é',
    '𠀀',
    'x'.repeat(300),
    '3.5',
    '(',
    ')',
  );
  const text = fc.oneof(
    fc.array(words, { maxLength: 60 }).map((parts) => parts.join(' ')),
    fc.array(words, { maxLength: 60 }).map((parts) => parts.join('')),
    fc.string({ unit: 'grapheme', maxLength: 400 }),
    fc.string({ unit: 'binary', maxLength: 400 }),
  );

  it('keeps every letter and digit, in order, once', () => {
    const letters = (value: string) => value.replace(/[^\p{L}\p{N}]/gu, '');
    fc.assert(
      fc.property(text, (value) => {
        expect(letters(sentences(value).join(''))).toBe(letters(value));
      }),
      { numRuns: 500 },
    );
  });

  it('gives passages that are trimmed, not empty, on one line and not too long', () => {
    fc.assert(
      fc.property(text, (value) => {
        for (const { text: passage } of passagesOf(segmentText(value))) {
          expect(passage).toBe(passage.trim());
          expect(passage).not.toMatch(/[\r\n]/);
          expect(passage).toMatch(/[\p{L}\p{N}]/u);
          expect(passage.length).toBeLessThanOrEqual(MAX_PASSAGE_LENGTH);
        }
      }),
      { numRuns: 500 },
    );
  });

  it('has a passage exactly if it has a letter or digit', () => {
    fc.assert(
      fc.property(text, (value) => {
        expect(passagesOf(segmentText(value)).length > 0).toBe(/[\p{L}\p{N}]/u.test(value));
      }),
    );
  });
});

describe('drawEvenly', () => {
  it('draws distinct indices in order, with gaps that differ by at most one', () => {
    fc.assert(
      fc.property(fc.nat({ max: 5000 }), fc.integer({ min: 1, max: 600 }), (total, count) => {
        const drawn = drawEvenly(total, count);
        expect(drawn).toHaveLength(Math.min(total, count));
        const gaps = drawn.slice(1).map((index, i) => index - (drawn[i] as number));
        for (const gap of gaps) expect(gap).toBeGreaterThanOrEqual(1);
        if (gaps.length > 0) expect(Math.max(...gaps) - Math.min(...gaps)).toBeLessThanOrEqual(1);
        for (const index of drawn) expect(index >= 0 && index < total).toBe(true);
      }),
    );
  });
});
