/** `gpuos info`: the devices of this machine, what was found, what is missing and how to get it. */
import { cpus, totalmem } from 'node:os';
import { chosenDevice } from '../backends/index.ts';
import { cacheFolder, FLAGS, readFlags } from '../flags.ts';
import { inspectDevices } from '../index.ts';
import { BASELINE_PACKAGES, DEMO_PACKAGES, installCommand, resolvePackage, TFJS_PACKAGES } from './demo/packages.ts';
import { print } from './output.ts';
import { packageVersion } from './version.ts';

/** Packages that a part of gpuos uses but does not depend on. */
const OPTIONAL: readonly (readonly [use: string, names: readonly string[]])[] = [
  ['gpuos/tfjs', Object.keys(TFJS_PACKAGES)],
  ['gpuos demo', Object.keys(DEMO_PACKAGES)],
  ['gpuos demo --compare', Object.keys(BASELINE_PACKAGES)],
];

export async function runInfo(options: { json: boolean }): Promise<number> {
  // Checked first: a misspelt flag is the likeliest reason for asking.
  const { home, device: asked } = readFlags();
  const device = chosenDevice(asked);
  const devices = inspectDevices();
  const packages = OPTIONAL.map(([use, names]) => {
    const missing = names.filter((name) => resolvePackage(name) === undefined);
    return { use, missing, ...(missing.length > 0 ? { install: installCommand(missing) } : {}) };
  });
  const flags = Object.fromEntries(Object.keys(FLAGS).flatMap((name) => (process.env[name] ? [[name, process.env[name]]] : [])));
  const machine = {
    node: process.version,
    cpu: cpus()[0]?.model.trim() ?? 'unknown',
    cores: cpus().length,
    memoryMib: Math.round(totalmem() / 2 ** 20),
  };
  const cache = cacheFolder(home);
  if (options.json) {
    print(`${JSON.stringify({ version: packageVersion(), device, devices, packages, machine, flags, cache })}\n`);
    return 0;
  }
  const lines = [`gpuos ${packageVersion()}`, '', 'devices'];
  for (const device of devices) {
    lines.push(`  ${device.kind.padEnd(10)} ${device.name}${device.usable ? '' : ' (not usable)'}`);
    for (const [name, value] of Object.entries(device.details)) lines.push(`  ${''.padEnd(10)}   ${name}: ${value}`);
    for (const { what, remedy } of device.missing) lines.push(`  ${''.padEnd(10)}   missing ${what}: ${remedy}`);
  }
  lines.push(
    `  ${'init()'.padEnd(10)} takes ${device}${asked === 'auto' ? '; another by GPUOS_DEVICE' : `, as GPUOS_DEVICE=${asked} says`}`,
  );
  lines.push('', 'packages');
  const width = Math.max(...packages.map(({ use }) => use.length));
  for (const { use, missing, install } of packages) {
    lines.push(`  ${use.padEnd(width)}  ${missing.length === 0 ? 'found' : `missing ${missing.join(', ')}: ${install}`}`);
  }
  lines.push('', 'machine', `  ${machine.cpu}, ${machine.cores} cores, ${machine.memoryMib} MiB, Node.js ${machine.node}`);
  lines.push(
    '',
    'flags',
    `  ${
      Object.keys(flags).length === 0
        ? 'none set'
        : Object.entries(flags)
            .map(([name, value]) => `${name}=${value}`)
            .join('  ')
    }`,
  );
  lines.push('', 'cache', `  ${cache}`);
  print(`${lines.join('\n')}\n`);
  return 0;
}
