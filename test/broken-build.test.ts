/** Builds in which something is missing, damaged or of another version: each is an error with a code, and nothing hangs. */
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';

const root = fileURLToPath(new URL('..', import.meta.url));
let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'gpuos-broken-'));
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'));
  cpSync(join(root, 'package.json'), join(folder, 'package.json'));
});
beforeEach(() => {
  rmSync(join(folder, 'dist'), { recursive: true, force: true });
  cpSync(join(root, 'dist'), join(folder, 'dist'), { recursive: true });
});
afterAll(() => rmSync(folder, { recursive: true }));

const device = (name: string) => join(folder, 'dist/backends/wasm', name);

/** The same name everywhere in a file, replaced by another that is as long. */
function rename(file: string, name: string, other: string): void {
  const bytes = readFileSync(file, 'latin1');
  expect(bytes).toContain(name);
  expect(other).toHaveLength(name.length);
  writeFileSync(file, bytes.replaceAll(name, other), 'latin1');
}

/** Part of a file of the copy, replaced. */
const edit = (name: string, from: string, to: string): void => {
  const text = readFileSync(device(name), 'utf8');
  expect(text).toContain(from);
  writeFileSync(device(name), text.replace(from, to));
};

function node(args: readonly string[]): { status: number | null; stdout: string; stderr: string } {
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(GPUOS|VITEST|NODE_OPTIONS)/.test(name)));
  return spawnSync(process.execPath, [...args], { cwd: folder, env, encoding: 'utf8', timeout: 50_000 });
}

/** What init() throws, if anything, and how the device ends when the program only waits for its end. */
function outcome(): { error?: string; message?: string; lost?: string; submit?: string; again?: string } {
  writeFileSync(
    join(folder, 'program.mjs'),
    `import { init } from './dist/index.js';
    const codeOf = (error) => error.code ?? 'without a code: ' + error;
    const report = {};
    try {
      const system = init({ workers: 2, memoryMib: 64 });
      while (system.workerAlive()) await new Promise((resolve) => setTimeout(resolve, 5));
      // The word that says so comes before the message that says why.
      await new Promise((resolve) => setTimeout(resolve, 200));
      report.lost = system.device.lost;
      try { system.submit({ operator: 'nop', words: [1] }); } catch (error) { report.submit = codeOf(error); }
      await system.shutdown();
    } catch (error) {
      report.error = codeOf(error);
      report.message = error.message;
      // A failed init() leaves nothing behind that the next one would meet.
      try { init({ workers: 2, memoryMib: 64 }); } catch (second) { report.again = codeOf(second); }
    }
    console.log(JSON.stringify(report));`,
  );
  const { status, stdout, stderr } = node(['program.mjs']);
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  return JSON.parse(stdout) as ReturnType<typeof outcome>;
}

describe('a device module', () => {
  it.each<[string, () => void, RegExp]>([
    ['that is missing', () => rmSync(device('device.wasm')), /device\.wasm has not been built/],
    ['that is cut off', () => writeFileSync(device('device.wasm'), readFileSync(device('device.wasm')).subarray(0, 5000)), /device\.wasm/],
    ['that is empty', () => writeFileSync(device('device.wasm'), ''), /device\.wasm/],
    ['without one of the functions', () => rename(device('device.wasm'), 'rotary', 'rotarx'), /has no function rotary/],
    ['that wants something else of the host', () => rename(device('device.wasm'), 'install', 'instalk'), /instalk/],
  ])('%s is refused with GPUOS_ABI_MISMATCH', (_, damage, message) => {
    damage();
    const { error, message: said, again } = outcome();
    expect(said).toMatch(message);
    expect({ error, again }).toEqual({ error: 'GPUOS_ABI_MISMATCH', again: 'GPUOS_ABI_MISMATCH' });
  });

  it('that is missing is named by the command, with what to do about it', () => {
    rmSync(device('device.wasm'));
    const info = node(['dist/cli/index.js', 'info', '--json']);
    const { devices } = JSON.parse(info.stdout) as {
      devices: { kind: string; usable: boolean; missing: { what: string; remedy: string }[] }[];
    };
    const wasm = devices.find(({ kind }) => kind === 'wasm');
    expect(info.status).toBe(0);
    expect(wasm).toMatchObject({
      usable: false,
      missing: [{ what: expect.stringContaining('GPUOS_ABI_MISMATCH'), remedy: expect.stringContaining('npm run build') }],
    });
    const demo = node(['dist/cli/index.js', 'demo', '--no-cache', '--quiet', '--limit', '1']);
    expect(demo.status).toBe(1);
    expect(demo.stderr).toMatch(/^error: .*device\.wasm has not been built.*\[GPUOS_ABI_MISMATCH\] [A-Z].*\.\n$/);
  });
});

describe('a device whose threads cannot be kept running', () => {
  it('since they are of a build with another layout is lost, and says why', () => {
    // The supervisor and what it starts get an instance.js of their own; the host keeps its own.
    cpSync(device('instance.js'), device('another.js'));
    edit('another.js', 'version !== ABI_VERSION', 'version !== ABI_VERSION + 1');
    edit('supervisor.js', './instance.js', './another.js');
    const { lost, submit } = outcome();
    expect(lost).toMatch(/the supervisor failed: Shared memory has layout.*\[GPUOS_ABI_MISMATCH\]/);
    expect(submit).toBe('GPUOS_DEVICE_LOST');
  });

  it.each<[string, () => void, RegExp]>([
    ['the worker is missing', () => rmSync(device('worker.js')), /the supervisor failed:.*worker\.js has not been built/],
    [
      'the supervisor leaves',
      () => writeFileSync(device('supervisor.js'), 'export const SUPERVISION = {};'),
      /the supervisor thread ended/,
    ],
    [
      'the worker throws',
      () => writeFileSync(device('worker.js'), "throw new Error('no such CPU');"),
      /11 workers in a row could not start; the last died with: no such CPU/,
    ],
    [
      'workers start, and die in their loop',
      () => {
        edit('worker.js', 'executor.run(start.worker)', "(setState(WORKER_STATE.RUNNING), (() => { throw new Error('bad memory'); })())");
        // A small machine cannot start a hundred threads in ten seconds.
        edit('supervisor.js', 'LOSS_LIMIT = 100', 'LOSS_LIMIT = 12');
      },
      /13 workers died within 10 s; the last died with: bad memory/,
    ],
  ])('since %s is lost, and says why', (_, damage, message) => {
    damage();
    const { error, lost, submit } = outcome();
    expect(error).toBeUndefined();
    expect(lost).toMatch(message);
    expect(submit).toBe('GPUOS_DEVICE_LOST');
  });
});

describe('a second copy of the package in one process', () => {
  it('is refused with GPUOS_ALREADY_INITIALIZED, and the first goes on', () => {
    writeFileSync(
      join(folder, 'copies.mjs'),
      `import * as tf from '@tensorflow/tfjs-core';
      const first = await import('./dist/integrations/tfjs/index.js');
      let code;
      try { await import(${JSON.stringify(pathToFileURL(join(root, 'dist/integrations/tfjs/index.js')).href)}); } catch (error) { code = error.code; }
      const values = [...tf.square(tf.tensor1d([1, 2])).dataSync()];
      console.log(JSON.stringify({ code, backend: tf.getBackend(), values }));
      await first.shutdown();`,
    );
    const { status, stdout, stderr } = node(['copies.mjs']);
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(JSON.parse(stdout)).toEqual({ code: 'GPUOS_ALREADY_INITIALIZED', backend: 'gpuos', values: [1, 4] });
  });
});
