/**
 * The device process: has the CUDA context, so that a fault of the device takes this process and not the program.
 * Started by `device-process.ts` with the channel and the segment as open files.
 *
 * It lives as long as its parent: it leaves when the parent says so or is gone, and not on a signal, since Ctrl-C
 * reaches both and the parent may have its own mind.
 */
import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads';
import { GpuosError } from '../../../errors.ts';
import { findLibrary } from '../discovery.ts';
import { CudaDriver } from '../driver.ts';
import { CallGuard } from './call-guard.ts';
import { Channel, CHILD, LANE } from './channel.ts';
import { ChannelServer } from './channel-server.ts';
import { CodeArena } from './code-arena.ts';
import type { CompilerContext, CompilerReady, CompilerStart } from './compiler.ts';
import { endBy, EXIT, isFatal } from './ending.ts';
import { toError } from './failure.ts';
import type { HeartbeatStart } from './heartbeat.ts';
import { exitNow } from './libc.ts';
import type { ResidentHostFactory } from './resident-host.ts';
import { SharedSegment } from './segment.ts';
import { type LinkedImage, QuickService } from './service.ts';

export interface MainStart {
  readonly parent: number;
  readonly ordinal: number;
  readonly cudaHome?: string;
  readonly channelBytes: number;
  readonly segmentBytes: number;
  readonly arenaBytes: number;
  /** Where `createResidentHost` is. */
  readonly hostModule?: string;
}

/** The open files that the parent hands over. */
export const DESCRIPTOR = { channel: 3, segment: 4 } as const;

/** How long it sleeps where nobody wakes it: then it looks after the kernel and the parent, and lets signals be handled. */
const SLICE_MS = 100;
/** The same while tasks wait for their work to be launched: nobody wakes it when a gate opens. */
const SOON_MS = 0.1;
const LATER_MS = 5;

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {});

if (process.argv[2] === undefined) {
  process.stderr.write('gpuos starts this by itself.\n');
  process.exit(EXIT.failed);
}
const start = JSON.parse(process.argv[2]) as MainStart;
const channelMemory = SharedSegment.inherit(DESCRIPTOR.channel, start.channelBytes);
const channel = Channel.open(channelMemory.view, channelMemory.address);
let segment: SharedSegment | undefined;
let service: QuickService | undefined;
const end = (error: unknown): never => endBy(channel, segment?.view, service?.explain(error) ?? error);
process.on('uncaughtException', end);
process.on('unhandledRejection', end);
process.title = 'gpuos device';

try {
  segment = SharedSegment.inherit(DESCRIPTOR.segment, start.segmentBytes);
  await run(segment);
} catch (error) {
  end(error);
}

async function run(memory: SharedSegment): Promise<void> {
  const orphaned = (): boolean => process.ppid !== start.parent;
  const guard = new CallGuard();
  thread('heartbeat', { segmentAddress: memory.address, parent: start.parent, guard: guard.shared } satisfies HeartbeatStart);
  const compiler = thread('compiler', {
    cudaHome: start.cudaHome,
    channel: { address: channelMemory.address, bytes: channelMemory.bytes },
  } satisfies CompilerStart);
  const found = new Promise<CompilerReady>((resolve) => compiler.once('message', resolve));

  const driver = new CudaDriver(findLibrary('driver', { cudaHome: start.cudaHome }));
  driver.initialize();
  const device = driver.device(start.ordinal);
  const context = driver.retainPrimaryContext(device);
  driver.setCurrent(context);
  driver.registerHost(memory.address, memory.bytes);
  const deviceAddress = driver.deviceAddress(memory.address);
  const arena = { address: driver.allocate(start.arenaBytes), bytes: start.arenaBytes, used: new SharedArrayBuffer(4) };
  const nvrtc = await found;
  if ('failure' in nvrtc) throw toError(nvrtc.failure);
  const computeCapability = driver.computeCapability(device);
  const sm = 10 * computeCapability[0] + computeCapability[1];
  const images = new MessageChannel();
  compiler.postMessage({ context, sm, arena, images: images.port2 } satisfies CompilerContext, [images.port2]);

  const own = new QuickService({
    driver,
    device,
    channel,
    sm,
    arena: new CodeArena(arena.address, arena.bytes, new Int32Array(arena.used)),
    segment: { address: memory.address, deviceAddress, bytes: memory.bytes, view: memory.view },
    createHost: await hostFactory(start.hostModule),
    linked: imagesFrom(images.port1),
    guard,
    cudaHome: start.cudaHome,
    info: {
      name: driver.deviceName(device),
      sms: driver.deviceAttribute(device, 'sms'),
      computeCapability,
      cudaVersion: driver.version(),
      totalMemoryBytes: driver.totalMemory(device),
      driverPath: driver.path,
      nvrtcPath: nvrtc.path,
      nvrtcVersion: nvrtc.version,
      segmentAddress: deviceAddress,
    },
  });
  service = own;
  channel.moveChild(CHILD.starting, CHILD.ready);

  const server = new ChannelServer(channel, LANE.quick);
  let watched = performance.now();
  while (!channel.leaving && !orphaned()) {
    server.serve(own.handle, (error) => {
      if (isFatal(error)) end(error);
    });
    const look = own.look();
    if (look !== 'now') server.wait(look === 'soon' ? SOON_MS : look === 'later' ? LATER_MS : SLICE_MS);
    const now = performance.now();
    if (now - watched < SLICE_MS / 2) continue;
    watched = now;
    own.watch();
    await new Promise(setImmediate);
  }
  own.stop();
  channel.moveChild(CHILD.ready, CHILD.left);
  exitNow(EXIT.left);
}

function thread(name: string, workerData: unknown): Worker {
  const worker = new Worker(new URL(`./${name}.js`, import.meta.url), { workerData, execArgv: [] });
  worker.on('error', end);
  worker.on('exit', () => {
    if (!channel.leaving) end(new GpuosError('GPUOS_INTERNAL', `The thread ${name} of the device process ended.`));
  });
  return worker;
}

/**
 * Images that came through the port: whoever asks for one was told its number when it had been sent. Two are kept, as the
 * parent may have one made while another one waits for the kernel to be free.
 */
function imagesFrom(port: MessagePort): (image: number) => Uint8Array | undefined {
  let newest: LinkedImage[] = [];
  return (image) => {
    for (let next = receiveMessageOnPort(port); next !== undefined; next = receiveMessageOnPort(port)) {
      newest = [...newest.slice(-1), next.message as LinkedImage];
    }
    return newest.find((one) => one.image === image)?.bytes;
  };
}

async function hostFactory(url: string | undefined): Promise<ResidentHostFactory | undefined> {
  if (url === undefined) return undefined;
  const module = (await import(url)) as { readonly createResidentHost?: unknown };
  if (typeof module.createResidentHost === 'function') return module.createResidentHost as ResidentHostFactory;
  throw new GpuosError('GPUOS_INTERNAL', `${url} has no createResidentHost.`);
}
