/** What comes after a failure that was handled, and after the backend was shut down: in processes of their own. */
import { expect, test } from 'vitest';
import { program } from '../../../test/program.ts';

const START = `
import { createRequire } from 'node:module';
const require = createRequire(process.cwd() + '/');
const tf = require('@tensorflow/tfjs-core');
const gpuos = await import('gpuos/tfjs');
await gpuos.ready();
`;

test('tf.time() tells of no failure but that of what it timed', () => {
  const { json, stderr } = program(`${START}
    const gather = () => tf.gather(tf.tensor1d([1, 2, 3]), tf.tensor1d([5], 'int32'));
    const report = {};
    report.handled = await gather().data().then(() => 'none', ({ code }) => code);
    report.next = await tf.time(() => tf.add(1, 2).dataSync()).then(() => 'none', ({ code }) => code);
    report.own = await tf.time(() => void gather()).then(() => 'none', ({ code }) => code);
    await gpuos.shutdown();
    console.log(JSON.stringify(report));`);
  expect(json, stderr).toEqual({ handled: 'GPUOS_INDEX_OUT_OF_RANGE', next: 'none', own: 'GPUOS_INDEX_OUT_OF_RANGE' });
});

/** Adds after shutdown(), with or without a backend chosen by the program. */
const after = (chosen: string, log = 'warn', others = "require('@tensorflow/tfjs-backend-cpu');") =>
  program(
    `${START}
    ${others}
    await gpuos.shutdown();
    ${chosen}
    try {
      const [sum] = await tf.add(1, 2).data();
      await tf.add(3, 4).data();
      console.log(JSON.stringify({ sum, backend: tf.getBackend() }));
    } catch ({ code }) {
      console.log(JSON.stringify({ code }));
    }`,
    { GPUOS_LOG: log },
  );

test('after shutdown() one warning says which backend TensorFlow.js goes on with, unless the program chooses', () => {
  const { json, stderr } = after('');
  expect(json, stderr).toEqual({ sum: 3, backend: 'cpu' });
  expect(stderr.match(/goes on with "cpu"/g)).toHaveLength(1);
  const own = after("await tf.setBackend('cpu');");
  expect(own.json, own.stderr).toEqual({ sum: 3, backend: 'cpu' });
  expect(own.stderr).not.toContain('goes on with');
  expect(after('', 'silent').stderr).not.toContain('goes on with');
});

test('after shutdown() without another backend there is an error', () => {
  expect(after('', 'warn', '').json).toEqual({ code: 'GPUOS_SHUT_DOWN' });
});
