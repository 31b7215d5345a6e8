/** What the demo shows in the end: a table for people, one JSON object for programs. */
import { printable, table, truncate, wrap } from '../terminal.ts';
import type { BaselineName } from './baseline.ts';
import type { Comparison } from './compare.ts';
import type { EncoderDevice, Statistics } from './encoder.ts';
import type { DemoOptions } from './index.ts';
import type { Source } from './input.ts';
import type { Hit } from './search.ts';

export interface DemoReport {
  readonly options: DemoOptions;
  readonly source: Source;
  readonly device: EncoderDevice;
  /** Passages that were searched. */
  readonly sentences: number;
  /** Passages that were chosen but not reached, because the run was interrupted. */
  readonly missing: number;
  /** Calls of the encoder that the statistics are of. */
  readonly embedded: number;
  readonly statistics: Statistics;
  readonly latencyMsP50: number;
  readonly indexSeconds: number;
  readonly indexedNow: number;
  readonly firstHitSeconds: number | undefined;
  readonly compare: Partial<Record<BaselineName, Comparison>>;
  readonly cacheFile: string | undefined;
  readonly interrupted: boolean;
  readonly tops: readonly { readonly query: string; readonly hits: readonly Hit[] }[];
}

function passageOf(source: Source, hit: Hit): { text: string; section: string } {
  const { text, section } = source.passages[hit.passage] as { text: string; section: string };
  return { text: printable(text), section: printable(section) };
}

/** The line that is printed when a hit enters the best ones. */
export function hitLine(source: Source, hit: Hit, place: number, query: string | undefined, width: number): string {
  const { text, section } = passageOf(source, hit);
  const start = `  ${hit.score.toFixed(3)}  #${place + 1}  `;
  const what = [query === undefined ? '' : `[${truncate(printable(query), 24)}] `, text, section === '' ? '' : `  (${section})`].join('');
  return start + truncate(what, Math.max(20, width - start.length));
}

function perSentence(report: DemoReport, count: number): number {
  return report.embedded === 0 ? 0 : count / report.embedded;
}

const SECTION_WIDTH = 28;

/** Counts with separators, in one spelling everywhere. */
const integer = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });

export function reportText(report: DemoReport, width: number): string {
  const { source, statistics, device, compare } = report;
  const parts: string[] = [];
  const textWidth = Math.max(30, width - 7 - SECTION_WIDTH - 2);
  for (const { query, hits } of report.tops) {
    const rows = hits.flatMap((hit) => {
      const { text, section } = passageOf(source, hit);
      const lines = wrap(text, textWidth);
      const sections = wrap(section, SECTION_WIDTH);
      return Array.from({ length: Math.max(lines.length, sections.length) }, (_, row) => [
        row === 0 ? hit.score.toFixed(3) : '',
        sections[row] ?? '',
        lines[row] ?? '',
      ]);
    });
    parts.push(`"${printable(query)}"\n`, hits.length > 0 ? table(['score', 'where', 'passage'], rows) : 'no passage has been indexed', '');
  }
  const all = source.passages.length;
  const share = report.sentences < all && !report.interrupted ? `, drawn evenly from ${integer.format(all)} (--all takes every one)` : '';
  const facts: [string, string][] = [
    ['device', device.name],
    ['searched', `${integer.format(report.sentences)} passages${share}`],
    ['indexed now', `${integer.format(report.indexedNow)} in ${report.indexSeconds.toFixed(1)} s`],
    ['latency', `${report.latencyMsP50.toFixed(2)} ms a sentence (p50)`],
    [
      'a sentence is',
      `${integer.format(perSentence(report, statistics.frameworkOps))} framework operations, ` +
        `${(statistics.nativeShare * 100).toFixed(1)}% native, in ${integer.format(perSentence(report, statistics.tasks))} tasks`,
    ],
  ];
  if (report.firstHitSeconds !== undefined) facts.push(['first hit', `${report.firstHitSeconds.toFixed(2)} s after the start`]);
  if (report.cacheFile !== undefined) facts.push(['cache', report.cacheFile]);
  for (const [name, { latencyMsP50, ratio, maxAbsDiff, sentences, version }] of Object.entries(compare)) {
    facts.push([
      name,
      `${latencyMsP50.toFixed(2)} ms (p50 of ${sentences}, tfjs ${version}): ours is ${ratio.toFixed(2)} times as fast, ` +
        `largest difference ${maxAbsDiff.toExponential(1)}`,
    ]);
  }
  parts.push(facts.map(([name, value]) => `${name.padEnd(14)} ${value}`).join('\n'));
  if (report.interrupted) {
    const kept = report.cacheFile === undefined ? 'nothing is kept (--no-cache)' : 'what was indexed is kept; run again to go on';
    parts.push(`\ninterrupted with ${integer.format(report.missing)} passages left: ${kept}`);
  }
  return parts.join('\n');
}

/** Rounded to `digits` significant digits; null where there is no number, as JSON has it. */
function rounded(value: number | undefined, digits = 4): number | null {
  return value === undefined || !Number.isFinite(value) ? null : Number(value.toPrecision(digits));
}

/** The object of `--json`, on one line: the fields that are promised, in their order, then additional ones. */
export function reportJson(report: DemoReport): string {
  const { statistics, compare, device, source } = report;
  return JSON.stringify({
    job: 'semantic-search',
    device: device.kind,
    sentences: report.sentences,
    frameworkOpsPerSentence: rounded(perSentence(report, statistics.frameworkOps)),
    nativeShare: rounded(statistics.nativeShare),
    tasksPerSentence: rounded(perSentence(report, statistics.tasks)),
    latencyMsP50: rounded(report.latencyMsP50),
    indexSeconds: rounded(report.indexSeconds),
    compare: Object.fromEntries(
      Object.entries(compare).map(([name, { latencyMsP50, maxAbsDiff, oursLatencyMsP50, ratio, sentences, version }]) => [
        name,
        {
          latencyMsP50: rounded(latencyMsP50),
          maxAbsDiff: rounded(maxAbsDiff),
          oursLatencyMsP50: rounded(oursLatencyMsP50),
          ratio: rounded(ratio),
          sentences,
          version,
        },
      ]),
    ),
    top: report.tops.flatMap(({ query, hits }) =>
      hits.map((hit) => {
        const { text, section } = source.passages[hit.passage] as { text: string; section: string };
        return { score: rounded(hit.score, 6), text, section, query };
      }),
    ),
    backend: report.options.backend,
    deviceName: device.name,
    workers: device.workers,
    title: source.title,
    passages: source.passages.length,
    indexedNow: report.indexedNow,
    firstHitSeconds: rounded(report.firstHitSeconds),
    ringOpsPerSentence: rounded(perSentence(report, statistics.ringOps)),
    metadataOpsPerSentence: rounded(perSentence(report, statistics.metadataOps)),
    hostOpsPerSentence: rounded(perSentence(report, statistics.hostOps)),
    fallbackOpsPerSentence: rounded(perSentence(report, statistics.fallbackOps)),
    fallbacks: statistics.fallbacks,
    interrupted: report.interrupted,
    cacheFile: report.cacheFile ?? null,
  });
}
