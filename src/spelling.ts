/**
 * Hints for wrong words: what the user probably meant. A leaf, like errors.ts, so that every layer may give one.
 */

/** Optimal string alignment distance: insertions, deletions, replacements and swaps of neighbours, each one step. */
export function editDistance(a: string, b: string): number {
  let beforeLast: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const replace = (last[j - 1] as number) + (a[i - 1] === b[j - 1] ? 0 : 1);
      let best = Math.min(replace, (last[j] as number) + 1, (row[j - 1] as number) + 1);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) best = Math.min(best, (beforeLast[j - 2] as number) + 1);
      row.push(best);
    }
    beforeLast = last;
    last = row;
  }
  return last[b.length] as number;
}

/** Case, spaces, `_` and `-` count for nothing, and no word is longer than what a person would type. */
function plain(word: string): string {
  return word.toLowerCase().replaceAll(/[-_ ]/g, '').slice(0, 64);
}

/** The candidate nearest to `word`, if one is near: at most a third of its letters (at least one) may differ. Never the word itself. */
export function nearest(word: string, candidates: Iterable<string>): string | undefined {
  const target = plain(word);
  let found: string | undefined;
  let least = Math.max(1, Math.floor(target.length / 3)) + 1;
  for (const candidate of candidates) {
    if (candidate === word) continue;
    const distance = editDistance(target, plain(candidate));
    if (distance < least) {
      least = distance;
      found = candidate;
    }
  }
  return found;
}

/** ` Did you mean "x"?` for the nearest candidate, or the empty string when none is near. */
export function nearMatchHint(word: string, candidates: Iterable<string>): string {
  const found = nearest(word, candidates);
  return found === undefined ? '' : ` Did you mean "${found}"?`;
}
