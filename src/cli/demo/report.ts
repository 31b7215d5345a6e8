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
  /** Passages that were searched: those that this run drew, and what earlier runs have indexed. */
  readonly sentences: number;
  /** Passages that this run drew evenly over the text. */
  readonly chosen: number;
  /** Passages that were chosen but not reached, because the run was interrupted. */
  readonly missing: number;
  /** Calls of the encoder that the statistics are of. */
  readonly embedded: number;
  readonly statistics: Statistics;
  /** The median of the calls that were timed. */
  readonly latency: { readonly ms: number; readonly samples: number };
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

/** A median of fewer calls says little. */
export const MIN_TIMED = 20;

/** With `--compare` the figure that stands beside the baseline's, if it is of enough calls. */
function latencyOf({ latency, compare }: DemoReport): DemoReport['latency'] {
  const beside = compare['tfjs-wasm'];
  if (beside === undefined || beside.sentences < Math.max(MIN_TIMED, latency.samples)) return latency;
  return { ms: beside.oursLatencyMsP50, samples: beside.sentences };
}

function medianText(samples: number): string {
  return samples < MIN_TIMED ? `median of only ${samples}` : `p50 of ${samples}`;
}

/** Whether what was searched is just what was drawn evenly over the text. */
function isEvenlyDrawn({ sentences, chosen, missing }: DemoReport): boolean {
  return missing === 0 && sentences === chosen;
}

/** How many passages were searched, and which. */
function searchedText(report: DemoReport): string {
  const { sentences, chosen, missing } = report;
  const all = report.source.passages.length;
  const [count, total] = [integer.format(sentences), integer.format(all)];
  if (sentences === all) return `${count} passages, all of the text`;
  if (missing > 0) return `${count} of ${total} passages`;
  const more = ' (--all takes every one)';
  if (isEvenlyDrawn(report)) return `${count} passages, drawn evenly from ${total}${more}`;
  return `${count} of ${total} passages${more}: ${integer.format(chosen)} drawn evenly, ${integer.format(sentences - chosen)} more that earlier runs have indexed`;
}

function indexedText({ indexedNow, indexSeconds, sentences }: DemoReport): string {
  const earlier = sentences - indexedNow;
  return `${integer.format(indexedNow)} in ${indexSeconds.toFixed(1)} s${earlier > 0 ? `; ${integer.format(earlier)} by earlier runs` : ''}`;
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
  const latency = latencyOf(report);
  const facts: [string, string][] = [
    ['device', device.name],
    ['searched', searchedText(report)],
    ['indexed now', indexedText(report)],
    ['latency', latency.samples === 0 ? 'not measured' : `${latency.ms.toFixed(2)} ms a sentence (${medianText(latency.samples)})`],
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
      `${latencyMsP50.toFixed(2)} ms (${medianText(sentences)}, tfjs ${version}): ours is ${ratio.toFixed(2)} times as fast, ` +
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
  const latency = latencyOf(report);
  return JSON.stringify({
    job: 'semantic-search',
    device: device.kind,
    sentences: report.sentences,
    frameworkOpsPerSentence: rounded(perSentence(report, statistics.frameworkOps)),
    nativeShare: rounded(statistics.nativeShare),
    tasksPerSentence: rounded(perSentence(report, statistics.tasks)),
    // Left out where an interrupt came before the first call that is timed: it is a number or nothing.
    ...(latency.samples > 0 ? { latencyMsP50: rounded(latency.ms) } : {}),
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
    indexedEarlier: report.sentences - report.indexedNow,
    drawn: report.chosen,
    drawnEvenly: isEvenlyDrawn(report),
    latencySamples: latency.samples,
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
