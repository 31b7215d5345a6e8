import { describe, expect, it } from 'vitest';
import type { Comparison } from './compare.ts';
import { type DemoReport, reportJson, reportText } from './report.ts';

const statistics = { frameworkOps: 0, ringOps: 0, metadataOps: 0, hostOps: 0, fallbackOps: 0, tasks: 0, nativeShare: 1, fallbacks: {} };

function report(changes: Partial<DemoReport>): DemoReport {
  const base = {
    options: { backend: 'gpuos' } as DemoReport['options'],
    source: { title: 'a text', passages: Array.from({ length: 2000 }, () => ({ text: 'A whale.', section: '' })) },
    device: { kind: 'wasm', name: 'embedded', workers: 1 },
    sentences: 500,
    chosen: 500,
    missing: 0,
    embedded: 1,
    statistics,
    latency: { ms: 5, samples: 20 },
    indexSeconds: 1,
    indexedNow: 500,
    firstHitSeconds: 1,
    compare: {},
    cacheFile: undefined,
    interrupted: false,
    tops: [],
  };
  return { ...base, ...changes };
}

function fact(name: string, changes: Partial<DemoReport>): string {
  const line = reportText(report(changes), 100)
    .split('\n')
    .find((candidate) => candidate.startsWith(`${name} `));
  return line?.slice(name.length).trim() ?? '';
}

const json = (changes: Partial<DemoReport>) => JSON.parse(reportJson(report(changes))) as Record<string, unknown>;

describe('what was searched', () => {
  it('is called drawn evenly only where it is', () => {
    expect(fact('searched', {})).toBe('500 passages, drawn evenly from 2,000 (--all takes every one)');
    expect(json({})).toMatchObject({ sentences: 500, indexedNow: 500, indexedEarlier: 0, drawn: 500, drawnEvenly: true });
    const more = { sentences: 503, indexedNow: 2 };
    expect(fact('searched', more)).toBe(
      '503 of 2,000 passages (--all takes every one): 500 drawn evenly, 3 more that earlier runs have indexed',
    );
    expect(fact('indexed now', more)).toBe('2 in 1.0 s; 501 by earlier runs');
    expect(json(more)).toMatchObject({ sentences: 503, indexedNow: 2, indexedEarlier: 501, drawn: 500, drawnEvenly: false });
    const stopped = { sentences: 500, chosen: 501, missing: 1, interrupted: true };
    expect(fact('searched', stopped)).toBe('500 of 2,000 passages');
    expect(json(stopped)).toMatchObject({ drawnEvenly: false });
    expect(fact('searched', { sentences: 2000, chosen: 500 })).toBe('2,000 passages, all of the text');
    // As many as were drawn, and yet others: an interrupted run with those of an earlier one.
    expect(json({ missing: 3, indexedNow: 497 })).toMatchObject({ drawnEvenly: false });
  });
});

describe('the latency', () => {
  it('is a p50 with enough calls, and a number or nothing', () => {
    expect(fact('latency', {})).toBe('5.00 ms a sentence (p50 of 20)');
    expect(json({})).toMatchObject({ latencyMsP50: 5, latencySamples: 20 });
    expect(fact('latency', { latency: { ms: 5, samples: 3 } })).toBe('5.00 ms a sentence (median of only 3)');
    const none = { latency: { ms: Number.NaN, samples: 0 }, interrupted: true };
    expect(fact('latency', none)).toBe('not measured');
    expect(json(none)).not.toHaveProperty('latencyMsP50');
    expect(json(none)).toMatchObject({ latencySamples: 0 });
  });

  it("is that beside the baseline's where that is of enough calls", () => {
    const compared = (sentences: number) => {
      const of: Comparison = {
        ...{ latencyMsP50: 9, maxAbsDiff: 1e-7, sentences, oursLatencyMsP50: 3, ratio: 3, version: '4' },
        first: { latencyMsP50: 9, oursLatencyMsP50: 3 },
      };
      return { compare: { 'tfjs-wasm': of } };
    };
    expect(json(compared(200))).toMatchObject({ latencyMsP50: 3, latencySamples: 200 });
    expect(json(compared(6))).toMatchObject({ latencyMsP50: 5, latencySamples: 20 });
    expect(fact('tfjs-wasm', compared(6))).toContain('9.00 ms (median of only 6, tfjs 4)');
  });
});
