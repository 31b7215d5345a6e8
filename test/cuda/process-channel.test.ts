import fc from 'fast-check';
import { afterAll, describe, expect, it } from 'vitest';
import { CudaError } from '../../src/backends/cuda/cuda-error.ts';
import {
  Channel,
  channelBytes,
  type ChannelShape,
  CHILD,
  LANE,
  type Lane,
  type Message,
  SLOT,
  STATE,
} from '../../src/backends/cuda/process/channel.ts';
import { ChannelClient, type Peer, type Pending } from '../../src/backends/cuda/process/channel-client.ts';
import { ChannelServer } from '../../src/backends/cuda/process/channel-server.ts';
import { toError, toFailure } from '../../src/backends/cuda/process/failure.ts';
import { SharedSegment } from '../../src/backends/cuda/process/segment.ts';
import { GpuosError } from '../../src/errors.ts';
import { blocked } from './process-start.ts';

const NONE = process.platform !== 'linux';

/** Small, so that slots run out and sizes are reached. */
const SHAPE: ChannelShape = {
  slots: [
    { count: 3, bytes: 1024 },
    { count: 1, bytes: 8192 },
  ],
};

const segments: SharedSegment[] = [];
afterAll(() => {
  for (const segment of segments) segment.close();
});

/** Both sides of a channel in this process: asked with `post`, answered with `serve`. */
function pair(firstId?: number, shape = SHAPE) {
  const segment = SharedSegment.create(channelBytes(shape));
  segments.push(segment);
  const channel = Channel.create(segment.view, segment.address, shape);
  const opened = Channel.open(segment.view, segment.address, shape);
  const state = { seen: 'running' as ReturnType<Peer['look']>, ended: 0 };
  const client = new ChannelClient(channel, { look: () => state.seen, end: () => void state.ended++ }, firstId);
  const servers = { quick: new ChannelServer(opened, LANE.quick), compile: new ChannelServer(opened, LANE.compile) };
  return { channel, client, servers, state, words: channel.words };
}

const echo = (name: string, { request: _, ...message }: Message): Message => ({ ...message, echo: name });
const outcome = (pending: Pending<Message>): unknown => {
  try {
    return pending.wait();
  } catch (error) {
    return error;
  }
};

describe.skipIf(NONE)(NONE ? 'Channel (skipped: not Linux)' : 'Channel', () => {
  it('brings every message and its answer over whole, whatever is in it', () => {
    const { client, servers } = pair();
    const value = fc.record({ text: fc.string({ maxLength: 50, unit: 'binary' }), list: fc.array(fc.integer(), { maxLength: 20 }) });
    const payload = fc.option(fc.uint8Array({ maxLength: 600 }), { nil: undefined });
    fc.assert(
      fc.property(fc.array(fc.record({ value, payload, lane: fc.constantFrom<Lane>('quick', 'compile') }), { maxLength: 12 }), (asks) => {
        const pendings = asks.map((ask, i) =>
          client.post(
            `r${i}`,
            { ...ask.value, ...(ask.payload === undefined ? {} : { payload: ask.payload }) },
            { lane: ask.lane, largeAnswer: true },
          ),
        );
        // The lanes are served in the other order, so that answers come out of it too.
        while (pendings.some(({ done }) => !done)) {
          servers.compile.serve(echo);
          servers.quick.serve(echo);
        }
        pendings.forEach((pending, i) => {
          const { value: sent, payload: bytes } = asks[i]!;
          expect(pending.wait()).toEqual({ ...JSON.parse(JSON.stringify(sent)), ...(bytes && { payload: bytes }), echo: `r${i}` });
        });
      }),
      { numRuns: 200 },
    );
  });

  it('serves a lane in the order of asking, also where the number wraps, and however few slots there are', () => {
    for (const first of [1, 2 ** 31 - 5, -3]) {
      const { client, servers } = pair(first);
      const served: string[] = [];
      const pendings = Array.from({ length: 40 }, (_, i) => client.post(`${i}`, {}));
      while (!pendings.every(({ done }) => done)) {
        servers.quick.serve((name) => {
          served.push(name);
          return {};
        });
      }
      expect(served).toEqual(Array.from({ length: 40 }, (_, i) => `${i}`));
    }
  });

  it('lets neither lane wait for the other', () => {
    const { client, servers } = pair();
    const slow = client.post('compile', {}, { lane: 'compile' });
    const quick = client.post('info', {});
    expect(servers.quick.serve(echo)).toBe(1);
    expect([quick.done, slow.done]).toEqual([true, false]);
    expect(servers.compile.serve(echo)).toBe(1);
    expect(slow.done).toBe(true);
  });

  it('brings errors over as what they were', () => {
    const { client, servers } = pair();
    const failure = { call: 'cuMemAlloc_v2', result: 2, resultName: 'CUDA_ERROR_OUT_OF_MEMORY' };
    const errors = [
      new GpuosError('GPUOS_BAD_OPTION', 'Bad.'),
      new CudaError('GPUOS_OUT_OF_MEMORY', 'No memory: 5 bytes.', failure),
      new TypeError('a defect'),
    ];
    for (const error of errors) {
      const pending = client.post('x', {});
      servers.quick.serve(() => {
        throw error;
      });
      const seen = outcome(pending) as GpuosError;
      expect(seen).toBeInstanceOf(error instanceof GpuosError ? error.constructor : GpuosError);
      if (error instanceof GpuosError) expect(seen).toMatchObject({ ...error, message: error.message });
      else expect(seen.message).toMatch(/a defect/);
    }
    fc.assert(fc.property(fc.jsonValue(), (value) => void expect(toError(value)).toBeInstanceOf(GpuosError)));
    expect(toFailure(toError({ code: 'GPUOS_BAD_OPTION', message: 'm' }))).toEqual({ code: 'GPUOS_BAD_OPTION', message: 'm' });
  });

  it('refuses a request that no slot holds, and an answer that its slot does not hold', () => {
    const { client, servers } = pair();
    expect(() => client.post('x', { payload: new Uint8Array(8192) })).toThrow(/message of 82\d\d bytes.*8192 fit.*GPUOS_BAD_OPTION/);
    const full = client.post('x', { payload: new Uint8Array(8160) });
    const small = client.post('x', {});
    servers.quick.serve((_, { payload }) => ({ payload: payload ?? new Uint8Array(1100) }));
    expect(full.wait()['payload']).toHaveLength(8160);
    expect(() => small.wait()).toThrow(/answer of 11\d\d bytes to x; 1024 fit/);
    const long = client.post('x', {});
    servers.quick.serve(() => {
      throw new GpuosError('GPUOS_COMPILE_FAILED', '\u0000'.repeat(5000));
    });
    expect(outcome(long)).toMatchObject({ code: 'GPUOS_COMPILE_FAILED' });
  });

  it('gives promises too, and keeps what was answered before the other side went', async () => {
    const { client, servers, state } = pair();
    const first = client.post('a', { n: 1 });
    const second = client.post('b', {});
    const promise = first.promise;
    expect(first.promise).toBe(promise);
    const rejected = second.promise.catch((error: GpuosError) => error.code);
    servers.quick.serve((name, message) => {
      if (name === 'b') throw new GpuosError('GPUOS_BAD_OPTION', 'b');
      return echo(name, message);
    });
    expect([await promise, await rejected]).toEqual([{ n: 1, echo: 'a' }, 'GPUOS_BAD_OPTION']);

    const [answered, unanswered, queued] = [client.post('c', {}), client.post('d', {}), client.post('e', {})];
    let turns = 0;
    servers.quick.serve((name, message) => {
      turns++;
      if (name !== 'c') state.seen = new GpuosError('GPUOS_DEVICE_LOST', 'It is gone.');
      return echo(name, message);
    });
    expect(turns).toBe(3);
    expect(blocked(() => client.lost !== undefined, 100)).toBe(true);
    expect(client.lost?.message).toMatch(/It is gone/);
    expect([answered, unanswered, queued].map((pending) => pending.done)).toEqual([true, true, true]);
    expect(answered.wait()).toEqual({ echo: 'c' });
    expect(() => client.post('f', {})).toThrow(/It is gone/);
    expect(() => client.call('f', {})).toThrow(/It is gone/);
    expect(client.lost).toBe(state.seen);
  });

  it('fails all that is on its way when the other side goes', async () => {
    const { client, state } = pair();
    const all = Array.from({ length: 8 }, () => client.post('x', {}));
    const promise = all[0]!.promise.catch((error: GpuosError) => error.code);
    state.seen = new GpuosError('GPUOS_DEVICE_LOST', 'It is gone.');
    expect(() => all[7]!.wait()).toThrow(/It is gone/);
    for (const pending of all) expect(outcome(pending)).toBe(state.seen);
    expect(await promise).toBe('GPUOS_DEVICE_LOST');
  });

  it('gives up who does not answer in time, not counting the time that it is stopped', () => {
    const { client, state } = pair();
    const stuck = client.post('slow', {}, { limitMs: 60 });
    state.seen = 'stopped';
    expect(client.lost).toBeUndefined();
    const until = performance.now() + 150;
    while (performance.now() < until) expect(stuck.done).toBe(false);
    state.seen = 'running';
    const from = performance.now();
    expect(() => stuck.wait()).toThrow(/did not answer slow within 0.06 s.*GPUOS_DEVICE_LOST/);
    expect(performance.now() - from).toBeGreaterThan(30);
    expect(state.ended).toBe(1);
  });

  it('tells why it ended, the first reason alone, however long', () => {
    const { channel } = pair();
    expect(channel.moveChild(CHILD.starting, CHILD.ready)).toBe(true);
    expect(channel.moveChild(CHILD.starting, CHILD.ready)).toBe(false);
    expect(channel.moveChild(CHILD.ready, CHILD.lost, new GpuosError('GPUOS_DEVICE_LOST', '\u0001'.repeat(9000)))).toBe(true);
    expect(channel.moveChild(CHILD.ready, CHILD.lost, new GpuosError('GPUOS_INTERNAL', 'second'))).toBe(false);
    expect(toError(channel.reason)).toMatchObject({ code: 'GPUOS_DEVICE_LOST', message: expect.stringMatching(/^\u0001{384}\.\.\./) });
    expect(channel.child).toBe(CHILD.lost);
  });

  it('is opened only where one of this version is', () => {
    const segment = SharedSegment.create(channelBytes(SHAPE));
    segments.push(segment);
    expect(() => Channel.open(segment.view, segment.address, SHAPE)).toThrow(/GPUOS_ABI_MISMATCH/);
    Channel.create(segment.view, segment.address, SHAPE);
    expect(Channel.open(segment.view, segment.address, SHAPE).slots).toHaveLength(4);
    expect(() => Channel.open(new ArrayBuffer(100), 0, SHAPE)).toThrow(/GPUOS_ABI_MISMATCH/);
  });

  it('harms nobody when its contents are damaged: what comes is an answer or an error of ours, and soon', () => {
    const word = fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 });
    const interesting = fc.oneof(fc.integer({ min: -2, max: 10 }), fc.constantFrom(1024, 1025, 8192, 2 ** 31 - 1, -(2 ** 31)), word);
    const headers = { from: 0, words: 1024 + (4 * 64) / 4 };
    const step = fc.oneof(
      fc.record({ kind: fc.constant('post' as const), bytes: fc.nat(1500), lane: fc.constantFrom<Lane>('quick', 'compile') }),
      fc.record({ kind: fc.constantFrom('quick' as const, 'compile' as const) }),
      fc.record({ kind: fc.constant('poll' as const) }),
      fc.record({
        kind: fc.constant('damage' as const),
        at: fc.oneof(
          // A word of a slot, of its message's beginning, or any.
          fc.record({ slot: fc.nat(3), word: fc.nat(5) }).map(({ slot, word: w }) => 1024 + 16 * slot + w),
          fc.nat(3).map((slot) => -1 - slot),
          fc.integer({ min: headers.from, max: headers.words }),
        ),
        value: interesting,
      }),
    );
    let [answers, errors] = [0, 0];
    fc.assert(
      fc.property(fc.array(step, { minLength: 1, maxLength: 40 }), (steps) => {
        const { channel, client, servers, words } = pair();
        const pendings: Pending<Message>[] = [];
        const guarded = (action: () => unknown): void => {
          try {
            action();
          } catch (error) {
            if (!(error instanceof GpuosError)) throw error;
            errors++;
          }
        };
        for (const it of steps) {
          if (it.kind === 'post') {
            guarded(() => pendings.push(client.post('x', { payload: new Uint8Array(it.bytes) }, { lane: it.lane, limitMs: 5 })));
          } else if (it.kind === 'damage') {
            words[it.at < 0 ? channel.slots[-1 - it.at]!.at >> 2 : it.at] = it.value;
          } else if (it.kind === 'poll') for (const pending of pendings) void pending.done;
          else servers[it.kind].serve(echo);
        }
        // Whatever was damaged: nobody waits for ever.
        for (const pending of pendings) {
          servers.quick.serve(echo);
          servers.compile.serve(echo);
          guarded(() => {
            pending.wait();
            answers++;
          });
        }
        void channel.reason;
      }),
      { numRuns: 1500, interruptAfterTimeLimit: 40_000 },
    );
    expect(answers).toBeGreaterThan(50);
    expect(errors).toBeGreaterThan(50);
  });

  it('notices damage to what is on its way, and ends the other side', () => {
    for (const [at, value] of [
      [SLOT.state, 77],
      [SLOT.id, 5],
      [SLOT.jsonBytes, 1 << 30],
      [SLOT.jsonBytes, -1],
      [SLOT.payloadBytes, 1 << 30],
      [SLOT.payloadBytes, -7],
    ] as const) {
      const { channel, client, servers, state, words } = pair();
      const pending = client.post('x', {});
      servers.quick.serve(echo);
      const { word } = channel.slots.find((slot) => words[slot.word + SLOT.state] === STATE.answered)!;
      words[word + at] = value;
      expect(() => pending.wait()).toThrow(/damaged the memory.*GPUOS_DEVICE_LOST/);
      expect(state.ended).toBe(1);
      expect(() => client.post('x', {})).toThrow(/damaged/);
    }
  });
});
