import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type FileSystem, findLibrary, LIBRARIES, type LibraryName, type SearchOptions } from './discovery.ts';

/** A file system of the given files: path to text. */
function tree(files: Readonly<Record<string, string>>): FileSystem {
  const folders = new Map<string, Set<string>>();
  for (const path of Object.keys(files)) {
    const parts = path.split('/');
    for (let i = 1; i < parts.length; i++) {
      const folder = parts.slice(0, i).join('/') || '/';
      folders.set(folder, (folders.get(folder) ?? new Set()).add(parts[i]!));
    }
  }
  return { list: (folder) => [...(folders.get(folder) ?? [])], read: (path) => files[path] };
}

/** Where a library of a toolkit can lie, in the order of the search. */
const PLACES: readonly (readonly [from: string, folder: string])[] = [
  ['GPUOS_CUDA_HOME', '/flag'],
  ['GPUOS_CUDA_HOME', '/flag/lib64'],
  ['GPUOS_CUDA_HOME', '/flag/targets/x86_64-linux/lib'],
  ['CUDA_HOME', '/home-of-cuda/lib64'],
  ['CUDA_PATH', '/path-of-cuda/lib'],
  ['LD_LIBRARY_PATH', '/ld/one'],
  ['LD_LIBRARY_PATH', '/ld/two'],
  ['loader', '/from/ld.so.conf'],
  ['loader', '/from/conf.d'],
  ['loader', '/usr/lib/x86_64-linux-gnu'],
  ['loader', '/usr/lib64'],
  ['loader', '/usr/local/nvidia/lib64'],
  ['loader', '/usr/lib/wsl/lib'],
  ['loader', '/run/opengl-driver/lib'],
  ['toolkit', '/usr/local/cuda/lib64'],
  ['toolkit', '/usr/local/cuda-13.0/targets/x86_64-linux/lib'],
  ['toolkit', '/usr/local/cuda-12.8/lib64'],
  ['toolkit', '/opt/cuda/lib64'],
  ['conda', '/conda/lib'],
  ['pip', '/active/lib/python3.12/site-packages/nvidia/cu13/lib'],
  ['pip', '/active/lib/python3.12/site-packages/nvidia/cu12/lib'],
  ['pip', '/active/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib'],
  ['pip', '/srv/app/.venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib'],
  ['pip', '/pyenv/lib/python3.10/site-packages/nvidia/cuda_nvrtc/lib'],
  ['pip', '/me/.local/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib'],
  ['pip', '/usr/lib/python3/dist-packages/nvidia/cuda_nvrtc/lib'],
];
const DRIVER_PLACES = PLACES.filter(([from]) => !['toolkit', 'conda', 'pip'].includes(from));

const BASE: Readonly<Record<string, string>> = {
  '/etc/ld.so.conf': '# comment\ninclude /etc/ld.so.conf.d/*.conf\n/from/ld.so.conf # here\n',
  '/etc/ld.so.conf.d/a.conf': '/from/conf.d\n',
  '/etc/ld.so.conf.d/a.conf.old': '/from/nowhere\n',
  '/pyenv/bin/python3': '',
};

const options = (files: Readonly<Record<string, string>>): SearchOptions => ({
  files: tree({ ...BASE, ...files }),
  cudaHome: '/flag',
  variables: {
    CUDA_HOME: '/home-of-cuda',
    CUDA_PATH: '/path-of-cuda',
    LD_LIBRARY_PATH: '/ld/one::/ld/two',
    VIRTUAL_ENV: '/active',
    CONDA_PREFIX: '/conda',
    PATH: '/usr/bin:/pyenv/bin',
  },
  home: '/me',
  workingFolder: '/srv/app',
  architecture: 'x64',
});

/** What lies beside libraries and is none. */
const NOISE = [
  'libnvrtc-builtins.so.12.8',
  'libnvrtc.alt.so.13',
  'libnvrtc_static.a',
  'libnvrtc.so.13.old',
  'libcuda.so',
  'libcuda.so.580.159.04',
  'libcudart.so.13',
  'libnvidia-ml.so.580.159.04',
  'libcublas.so.13',
];

/** The order in which the loader's two sources come is that of its file: conf.d is included first. */
const rank = (folder: string): number => {
  const order = PLACES.map(([, place]) => place);
  [order[7], order[8]] = [order[8]!, order[7]!];
  return order.indexOf(folder);
};

describe('findLibrary', () => {
  it('finds what was put into any places, in the order of the search, and nothing else', () => {
    const file = (name: LibraryName) =>
      LIBRARIES[name].ofDriver
        ? fc.constantFrom('1')
        : fc.constantFrom('', '11', '11.8.89', '12', '12.8.93', '12.10', '13', '13.0.88', '14.1');
    const planted = fc.constantFrom(...(Object.keys(LIBRARIES) as LibraryName[])).chain((name) =>
      fc.record({
        name: fc.constant(name),
        files: fc.uniqueArray(
          fc.record({ place: fc.constantFrom(...(LIBRARIES[name].ofDriver ? DRIVER_PLACES : PLACES)), version: file(name) }),
          { maxLength: 8, selector: ({ place, version }) => `${place[1]} ${version}` },
        ),
        noise: fc.array(fc.tuple(fc.constantFrom(...PLACES), fc.constantFrom(...NOISE)), { maxLength: 8 }),
      }),
    );
    fc.assert(
      fc.property(planted, ({ name, files, noise }) => {
        const { stem, majors } = LIBRARIES[name];
        const path = ({ place, version }: (typeof files)[number]) => `${place[1]}/${stem}${version === '' ? '' : `.${version}`}`;
        const all = Object.fromEntries(
          [...files.map((one) => path(one)), ...noise.map(([[, folder], file]) => `${folder}/${file}`)].map((p) => [p, '']),
        );
        const { candidates, unsupported, tried } = findLibrary(name, options(all));

        // The bare names come last: only the loader can tell what they are.
        const bare = candidates.slice(candidates.length - majors.length);
        expect(bare.map((one) => one.path)).toEqual(majors.map((major) => `${stem}.${major}`));
        const found = candidates.slice(0, candidates.length - majors.length);

        const usable = (version: string) => version === '' || majors.includes(Number.parseInt(version, 10));
        const numbers = (version: string) => (version === '' ? [-1] : version.split('.').map(Number));
        const newest = (a: string, b: string) => {
          const [x, y] = [numbers(a), numbers(b)];
          const i = [0, 1, 2].find((k) => (x[k] ?? -1) !== (y[k] ?? -1)) ?? 0;
          return (y[i] ?? -1) - (x[i] ?? -1);
        };
        const sorted = [...files].sort((a, b) => rank(a.place[1]) - rank(b.place[1]) || newest(a.version, b.version));
        const expected = sorted.map((one) => ({ path: path(one), from: one.place[0], version: one.version }));
        expect(found).toEqual(expected.filter(({ version }) => usable(version)));
        expect(unsupported).toEqual(expected.filter(({ version }) => !usable(version)));

        // Everything found lies in a folder that is said to have been tried, and no folder is listed twice.
        for (const { path: file } of [...found, ...unsupported]) expect(tried).toContain(file.slice(0, file.lastIndexOf('/')));
        expect(new Set(tried).size).toBe(tried.length);
      }),
      { numRuns: 300 },
    );
  });

  it('takes the driver from no toolkit: what has its name there is for linking', () => {
    const { candidates } = findLibrary('driver', options({ '/usr/local/cuda/lib64/libcuda.so.1': '', '/conda/lib/libcuda.so.1': '' }));
    expect(candidates.map(({ path }) => path)).toEqual(['libcuda.so.1']);
  });

  it('looks where an Arm machine has them', () => {
    const files = tree({
      '/usr/lib/aarch64-linux-gnu/libcuda.so.1': '',
      '/usr/local/cuda/targets/sbsa-linux/lib/libnvrtc.so.12': '',
      '/usr/local/cuda/targets/x86_64-linux/lib/libnvrtc.so.12': '',
    });
    const search = (name: LibraryName) =>
      findLibrary(name, { files, variables: {}, architecture: 'arm64' }).candidates.filter(({ path }) => path.startsWith('/'));
    expect(search('driver').map(({ path }) => path)).toEqual(['/usr/lib/aarch64-linux-gnu/libcuda.so.1']);
    expect(search('nvrtc').map(({ path }) => path)).toEqual(['/usr/local/cuda/targets/sbsa-linux/lib/libnvrtc.so.12']);
  });

  it('comes to an end where the configuration of the loader includes itself', () => {
    const files = tree({ '/etc/ld.so.conf': 'include ld.so.conf\n/a\n', '/a/libcuda.so.1': '' });
    expect(findLibrary('driver', { files, variables: {} }).candidates[0]).toEqual({
      path: '/a/libcuda.so.1',
      from: 'loader',
      version: '1',
    });
  });

  it('reads the machine that it runs on, whatever that has', () => {
    for (const name of Object.keys(LIBRARIES) as LibraryName[]) {
      const { candidates, tried } = findLibrary(name);
      expect(candidates.length).toBeGreaterThan(0);
      expect(tried.length).toBeGreaterThan(5);
    }
  });
});
