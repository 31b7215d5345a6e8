/** The thread of the device process that compiles, and places what it compiled. */
import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import { findLibrary } from '../discovery.ts';
import { CudaDriver } from '../driver.ts';
import { type Address, koffi } from '../library.ts';
import { Nvrtc } from '../nvrtc.ts';
import { Channel, LANE } from './channel.ts';
import { ChannelServer } from './channel-server.ts';
import { CodeArena } from './code-arena.ts';
import { endBy, isFatal } from './ending.ts';
import { type Failure, toFailure } from './failure.ts';
import { CompileService, type LinkedImage } from './service.ts';

/** How long it sleeps where nobody wakes it. */
const SLEEP_MS = 1000;

export interface CompilerStart {
  readonly cudaHome: string | undefined;
  readonly channel: { readonly address: Address; readonly bytes: number };
}

/** What it says when it has found its libraries. */
export type CompilerReady = { readonly path: string; readonly version: readonly [number, number] } | { readonly failure: Failure };

/** What it is told when there is a context. */
export interface CompilerContext {
  readonly context: Address;
  readonly sm: number;
  readonly arena: { readonly address: Address; readonly bytes: number; readonly used: SharedArrayBuffer };
  /** Where linked images go. */
  readonly images: MessagePort;
}

const port = parentPort!;
const { cudaHome, channel: memory } = workerData as CompilerStart;
const channel = Channel.open(koffi().view(memory.address, memory.bytes) as ArrayBuffer, memory.address);

function serve(driver: CudaDriver, nvrtc: Nvrtc, { context, sm, arena, images }: CompilerContext): void {
  driver.setCurrent(context);
  const code = new CodeArena(arena.address, arena.bytes, new Int32Array(arena.used));
  const handOver = (image: LinkedImage): void => images.postMessage(image, [image.bytes.buffer as ArrayBuffer]);
  const service = new CompileService({ driver, arena: code, sm }, nvrtc, handOver);
  const server = new ChannelServer(channel, LANE.compile);
  while (!channel.leaving) {
    server.serve(service.handle, (error) => {
      if (isFatal(error)) endBy(channel, undefined, error);
    });
    server.wait(SLEEP_MS);
  }
}

try {
  const driver = new CudaDriver(findLibrary('driver', { cudaHome }));
  const nvrtc = new Nvrtc(findLibrary('nvrtc', { cudaHome }), Math.floor(driver.version() / 1000));
  port.once('message', (context: CompilerContext) => {
    try {
      serve(driver, nvrtc, context);
    } catch (error) {
      endBy(channel, undefined, error);
    }
  });
  port.postMessage({ path: nvrtc.path, version: nvrtc.version } satisfies CompilerReady);
} catch (error) {
  port.postMessage({ failure: toFailure(error) } satisfies CompilerReady);
}
