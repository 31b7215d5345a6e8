/**
 * A resident kernel for the stand-in driver: words of the segment, from 2048 on, say what it does.
 * 0: launches; 1: left; 2: fault when asked; 3: stops. The option `trouble` makes its module's process end in some way.
 */
import { exitNow } from '../../dist/backends/cuda/process/libc.js';

const trouble = process.env.FAKE_trouble;
if (trouble === 'killed') process.kill(process.pid, 'SIGKILL');
// At once: on its way out process.exit() takes down threads that are in native code, which may crash before it has come to the code.
if (trouble === 'exit') exitNow(5);
if (trouble === 'throw') throw new Error('no such luck');

export function createResidentHost({ driver, segment, allocate }) {
  const words = new Int32Array(segment.view, 2048, 8);
  const stream = driver.createStream();
  return {
    start(options, image) {
      if (trouble === 'later') setTimeout(() => void undefined.nothing, 20);
      const table = allocate(256);
      Atomics.add(words, 0, 1);
      return { table, image: image === undefined ? -1 : image.length, seen: options };
    },
    get left() {
      if (words[2] !== 0) driver.synchronizeStream(stream);
      return Atomics.load(words, 1) !== 0;
    },
    watch() {},
    mayTidy: false,
    tidy() {},
    explain: (fault) => fault,
    relaunch() {
      if (trouble !== 'leaves') Atomics.store(words, 1, 0);
      Atomics.add(words, 0, 1);
    },
    stop() {
      Atomics.add(words, 3, 1);
      driver.synchronizeStream(0x57);
    },
  };
}
