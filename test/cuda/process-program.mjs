/**
 * A program with a device process, from the built package: says `ready PID`, then does what its argument names.
 * usage: node process-program.mjs HOW FOLDER
 */
import { DeviceProcess } from '../../dist/backends/cuda/process/device-process.js';
import { SharedSegment } from '../../dist/backends/cuda/process/segment.js';

const [how, folder] = process.argv.slice(2);
const segment = SharedSegment.create(1 << 20);
const device = DeviceProcess.start({ segment, cudaHome: folder, hostModule: new URL('process-host.mjs', import.meta.url).href });
device.call('start', { options: {} });
const say = (text) => process.stdout.write(`${text}\n`);
const beats = () => Atomics.load(new Int32Array(segment.view), (1024 + 68) >> 2);
const rest = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);

const ways = {
  /** The end of the file is the end of the program: nothing keeps it alive. */
  end() {},
  exit() {
    process.exit(3);
  },
  throw() {
    throw new Error('on purpose');
  },
  async stop() {
    await device.stop();
    say('stopped');
  },
  /** Lives until it is killed. */
  wait() {
    setInterval(() => {}, 1000);
  },
  /** The same, with its event loop blocked in a call. */
  blocked() {
    for (;;) device.call('memory', {});
  },
  /** Calls with a short limit; says how often the device process beat meanwhile. */
  calls() {
    let rounds = 0;
    let before = beats();
    const turn = () => {
      const from = Date.now();
      while (Date.now() - from < 50) device.call('memory', {}, { limitMs: 100 });
      rest(1);
      if (++rounds % 10 === 0) {
        say(`beats ${beats() - before}`);
        before = beats();
      }
      setTimeout(turn, 1);
    };
    turn();
  },
  /** Ends while its device process is stopped. */
  stopped() {
    process.kill(device.pid, 'SIGSTOP');
    rest(200);
    process.exit(3);
  },
  /** Takes its time over Ctrl-C, and needs the device for it. */
  interrupt() {
    setInterval(() => {}, 1000);
  },
};
if (how === 'interrupt') {
  process.on('SIGINT', () => {
    setTimeout(() => {
      say(`free ${device.call('memory', {}).freeBytes}`);
      process.exit(0);
    }, 400);
  });
}
process.stdout.write(`ready ${device.pid}\n`, () => ways[how]());
