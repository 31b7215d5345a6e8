/**
 * Splits a text into the passages that the search ranks: sentences, each with the section that it stands in.
 *
 * It copes with what books and plain files hold: lines broken anywhere, CRLF, chapter headings, abbreviations
 * (`Mr. Starbuck`, `e.g.`, initials), quotes after the full stop, scripts without spaces, and text without any
 * punctuation or spaces at all. No letter is lost, doubled or moved: headings and passages, read in order, hold every
 * letter and digit of the text. A passage is at most `MAX_PASSAGE_LENGTH` long, so that no sentence can make the
 * encoder's cost, quadratic in the number of tokens, run away.
 */

export interface Passage {
  readonly text: string;
  /** The heading that the passage stands under; empty before the first one. */
  readonly section: string;
}

export interface Segment extends Passage {
  readonly kind: 'heading' | 'sentence';
}

/** In UTF-16 code units. */
export const MAX_PASSAGE_LENGTH = 400;

/** A heading longer than this is a paragraph that happens to have no full stop. */
const MAX_HEADING_LENGTH = 120;

/** After these a full stop never ends a sentence: a name or an example follows. */
const TITLES = new Set(
  'mr mrs ms messrs mme mlle dr prof st sts capt col gen lieut lt sgt maj rev hon gov cf viz vs e.g i.e approx'.split(' '),
);

/** Nor after these, if a number follows; some are words as well ("He said no. Then he left."). */
const NUMBERED = new Set('no nos vol vols fig figs p pp ch chap chaps sec art'.split(' '));

/** After these it ends one only if the next word starts with a capital letter. */
const ABBREVIATIONS = new Set('etc jr sr inc ltd co corp bros a.m p.m b.c a.d u.s u.k al ibid op loc'.split(' '));

const LETTER = /[\p{L}\p{N}]/u;
const PARAGRAPH_BREAK = /\n[^\S\n]*\n\s*/;
const CHAPTER =
  /^(chapter|book|part|volume|canto|act|scene|section|letter|prologue|epilogue|preface|introduction|appendix)\b[^.!?]{0,20}([.:—-]|$)/i;
/** A full stop (or more than one) with the quotes and brackets that close after it. */
const END = /(?:[.!?…]+|[。！？]+)["'”’»)\]]*/gu;

/** Whether the paragraph is a heading: a chapter's title, or one short line in capitals or without an end. */
function isHeading(paragraph: string): boolean {
  const line = paragraph.trim();
  if (line.length > MAX_HEADING_LENGTH || line.includes('\n') || !LETTER.test(line)) return false;
  if (CHAPTER.test(line) && line.split(/\s+/).length <= 14) return true;
  const letters = line.replace(/[^\p{L}]/gu, '');
  return letters.length >= 2 && line.length <= 60 && letters === letters.toUpperCase() && letters !== letters.toLowerCase();
}

/** Whether the full stop at `start` (its marks end at `end`) ends a sentence of `text`. */
function endsSentence(text: string, start: number, end: number): boolean {
  const mark = text[start] as string;
  if ('。！？'.includes(mark)) return true;
  if (end >= text.length) return true;
  if (!/\s/.test(text[end] as string)) return false;
  // The next word, past opening quotes and brackets. The window bounds the look-ahead of each full stop.
  const next = /^[\s"'“‘«([—-]*(.)/su.exec(text.slice(end, end + 40))?.[1];
  if (next === undefined) return true;
  if (/\p{Ll}/u.test(next)) return false;
  if (mark !== '.' || text[start + 1] === '.') return true;
  const word = /[\p{L}\p{N}.]*$/u.exec(text.slice(Math.max(0, start - 24), start))?.[0] ?? '';
  const plain = word.toLowerCase();
  if (TITLES.has(plain)) return false;
  if (NUMBERED.has(plain) && /\p{N}/u.test(next)) return false;
  if (ABBREVIATIONS.has(plain)) return /\p{Lu}/u.test(next);
  // An initial ("J. Ross Browne", "U.S.A. Today"), but not the pronoun or a number.
  if (/^(\p{Lu}\.)*\p{Lu}$/u.test(word) && plain !== 'i') return false;
  // The number of a list or heading at the very start ("1. Loomings").
  if (/^\p{N}+$/u.test(word) && text.slice(0, start).trim() === word) return false;
  return true;
}

/** The sentences of one paragraph, whose line breaks have become spaces. */
function sentencesOf(paragraph: string): string[] {
  const sentences: string[] = [];
  let from = 0;
  for (const match of paragraph.matchAll(END)) {
    const end = match.index + match[0].length;
    if (!endsSentence(paragraph, match.index, end)) continue;
    sentences.push(paragraph.slice(from, end).trim());
    from = end;
  }
  sentences.push(paragraph.slice(from).trim());
  return sentences.filter((sentence) => sentence !== '');
}

/** Where to break text that is too long: after the last clause mark, else the last space, else between two characters. */
function breakAt(text: string, limit: number): number {
  const head = text.slice(0, limit);
  for (const marks of [/[;:—](?=\s|[^\s])/gu, /,(?=\s)/gu, /\s/gu]) {
    let at = -1;
    for (const match of head.matchAll(marks)) at = match.index + match[0].length;
    // A piece of a few words would be a poor passage; look for a lesser mark instead.
    if (at >= limit / 4) return at;
  }
  const last = head.charCodeAt(limit - 1);
  return last >= 0xd800 && last <= 0xdbff ? limit - 1 : limit;
}

function pieces(sentence: string): string[] {
  const found: string[] = [];
  let from = 0;
  while (sentence.length - from > MAX_PASSAGE_LENGTH) {
    const at = breakAt(sentence.slice(from, from + MAX_PASSAGE_LENGTH), MAX_PASSAGE_LENGTH);
    found.push(sentence.slice(from, from + at).trim());
    from += at;
  }
  found.push(sentence.slice(from).trim());
  return found;
}

/** Headings and sentences of a text, in order. Pieces without a letter or digit ("* * *") are left out. */
export function segmentText(text: string, section = ''): Segment[] {
  const segments: Segment[] = [];
  let current = section;
  const normalized = text.replace(/\r\n?|[\u0085\u2028]/g, '\n').replace(/[\f\v\u2029]/g, '\n\n');
  for (const paragraph of normalized.split(PARAGRAPH_BREAK)) {
    if (isHeading(paragraph)) {
      current = paragraph.trim().replace(/\s+/g, ' ');
      segments.push({ kind: 'heading', text: current, section: current });
      continue;
    }
    for (const sentence of sentencesOf(paragraph.replace(/\s+/g, ' '))) {
      for (const piece of pieces(sentence)) {
        if (LETTER.test(piece)) segments.push({ kind: 'sentence', text: piece, section: current });
      }
    }
  }
  return segments;
}

/** The passages of a text. A text of headings alone is searched by its headings. */
export function passagesOf(segments: readonly Segment[]): Passage[] {
  const sentences = segments.filter((segment) => segment.kind === 'sentence');
  return (sentences.length > 0 ? sentences : segments).map(({ text, section }) => ({ text, section }));
}

/** `count` indices drawn evenly over `0 .. total - 1`, in order; all of them if there are no more than that. */
export function drawEvenly(total: number, count: number): number[] {
  if (count >= total) return Array.from({ length: total }, (_, index) => index);
  return Array.from({ length: count }, (_, index) => Math.floor(((index + 0.5) * total) / count));
}
