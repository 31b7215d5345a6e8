/** Device processes on the stand-in driver. */
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DeviceProcess, type DeviceProcessOptions } from '../../src/backends/cuda/process/device-process.ts';
import { SharedSegment } from '../../src/backends/cuda/process/segment.ts';
import { compileFakes, NO_COMPILER } from './fakes.ts';

export const SKIP = NO_COMPILER || process.platform !== 'linux' || !existsSync('/dev/shm');
export const named = (name: string): string => (SKIP ? `${name} (skipped: no C compiler for the stand-in, or not Linux)` : name);

export const HOST_MODULE = new URL('process-host.mjs', import.meta.url).href;

/** An environment in which the stand-in is an sm_90 device with memory. */
export const environment = (more: Readonly<Record<string, string | number>> = {}): Record<string, string | undefined> => ({
  ...process.env,
  FAKE_heap: '1',
  FAKE_attribute75: '9',
  FAKE_attribute76: '0',
  ...Object.fromEntries(Object.entries(more).map(([name, value]) => [name, String(value)])),
});

export interface Started {
  readonly device: DeviceProcess;
  readonly segment: SharedSegment;
  /** The calls of the driver and the compiler so far. */
  log(): string[];
}

/** The libraries, and processes that are ended with the test. */
export function stage() {
  const fakes = compileFakes(['driver', 'nvrtc']);
  const folder = mkdtempSync(join(tmpdir(), 'gpuos-process-'));
  const started: { device: DeviceProcess | undefined; segment: SharedSegment }[] = [];
  let count = 0;
  return {
    folder: fakes.folder,
    /** A process for which the stand-in behaves as `fake` says. */
    start(fake: Readonly<Record<string, string | number>> = {}, options: Partial<DeviceProcessOptions> = {}): Started {
      const segment = options.segment ?? SharedSegment.create(1 << 20);
      const file = join(folder, `log-${count++}`);
      const entry: (typeof started)[number] = { device: undefined, segment };
      started.push(entry);
      const device = DeviceProcess.start({
        cudaHome: fakes.folder,
        environment: environment({ FAKE_log: file, ...fake }),
        ...options,
        segment,
      });
      entry.device = device;
      return { device, segment, log: () => readFileSync(file, 'utf8').split('\n').slice(0, -1) };
    },
    async endAll(): Promise<void> {
      for (const { device, segment } of started.splice(0)) {
        await device?.stop();
        segment.close();
      }
    },
    remove(): void {
      fakes.remove();
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** Processes that live, and whose environment has this text in it. */
export function processesWith(text: string): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((name) => {
      try {
        return readFileSync(`/proc/${name}/environ`, 'latin1').includes(text);
      } catch {
        return false;
      }
    })
    .map(Number);
}

/** Waits for a condition; whether it came. */
export async function eventually(condition: () => boolean, ms = 5000): Promise<boolean> {
  for (const until = Date.now() + ms; Date.now() < until; await new Promise((resolve) => setTimeout(resolve, 10))) {
    if (condition()) return true;
  }
  return condition();
}

/** Waits with the event loop blocked; whether it came. */
export function blocked(condition: () => boolean, ms = 5000): boolean {
  const never = new Int32Array(new SharedArrayBuffer(4));
  for (const until = Date.now() + ms; Date.now() < until; Atomics.wait(never, 0, 0, 1)) if (condition()) return true;
  return condition();
}
