/**
 * Where the CUDA libraries are.
 *
 * The driver (`libcuda.so.1`) and NVML come with the kernel module and lie where the loader looks. NVRTC, nvJitLink and
 * cuBLAS come with a toolkit, with a distribution's packages or with pip's `nvidia-*` packages. Nothing is loaded
 * here: this page lists folders, and says what it found in which order and where it looked.
 *
 * Order: `GPUOS_CUDA_HOME`, `CUDA_HOME`, `CUDA_PATH`, `LD_LIBRARY_PATH`, the loader's folders, toolkits, conda, pip. Within a
 * folder the newest version comes first.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';

export type LibraryName = 'driver' | 'nvml' | 'nvrtc' | 'nvjitlink' | 'cublas';

interface LibraryDefinition {
  /** The name without a version. */
  readonly stem: string;
  /** The versions that gpuos can use: the number after `.so.`. */
  readonly majors: readonly number[];
  /** Part of the driver: never taken from a toolkit or from pip, where only stand-ins for linking have this name. */
  readonly ofDriver: boolean;
}

export const LIBRARIES: Readonly<Record<LibraryName, LibraryDefinition>> = {
  driver: { stem: 'libcuda.so', majors: [1], ofDriver: true },
  nvml: { stem: 'libnvidia-ml.so', majors: [1], ofDriver: true },
  nvrtc: { stem: 'libnvrtc.so', majors: [13, 12], ofDriver: false },
  nvjitlink: { stem: 'libnvJitLink.so', majors: [13, 12], ofDriver: false },
  cublas: { stem: 'libcublasLt.so', majors: [13, 12], ofDriver: false },
};

/** What the search reads of a file system. */
export interface FileSystem {
  /** Names in a folder, in any order; none if it is not a folder that can be read. */
  list(folder: string): readonly string[];
  /** A file's text; undefined if it cannot be read. */
  read(file: string): string | undefined;
}

export interface SearchOptions {
  /** Default: the real one. */
  readonly files?: FileSystem;
  /** `GPUOS_CUDA_HOME`. */
  readonly cudaHome?: string | undefined;
  /** Default: `process.env`. */
  readonly variables?: Readonly<Record<string, string | undefined>>;
  /** The user's folder and the working folder, for pip's. Defaults: of this process. */
  readonly home?: string;
  readonly workingFolder?: string;
  /** In Node.js's spelling, `x64` or `arm64`. Default: of this process. */
  readonly architecture?: string;
}

export interface Candidate {
  /** A path, or a bare name that only the loader can resolve. */
  readonly path: string;
  /** What led there: a variable's name, `loader`, `toolkit`, `conda` or `pip`. */
  readonly from: string;
  /** The version after `.so.`, empty if the name has none: `13`, `12.8.93`. */
  readonly version: string;
}

export interface SearchResult {
  /** In the order in which they should be tried; ends with the bare names, which the loader may know where we do not. */
  readonly candidates: readonly Candidate[];
  /** Files of versions that gpuos cannot use. */
  readonly unsupported: readonly Candidate[];
  /** Folders that were listed, in order. */
  readonly tried: readonly string[];
}

const realFiles: FileSystem = {
  list(folder) {
    try {
      return readdirSync(folder);
    } catch {
      return [];
    }
  },
  read(file) {
    try {
      return readFileSync(file, 'utf8');
    } catch {
      return undefined;
    }
  },
};

interface Place {
  readonly folder: string;
  readonly from: string;
}

/** Compares `12.8.93` with `12.10`; an empty version is the oldest. */
function compareVersions(a: string, b: string): number {
  const [left, right] = [a, b].map((version) => (version === '' ? [-1] : version.split('.').map(Number))) as [number[], number[]];
  for (let i = 0; i < Math.max(left.length, right.length); i++) {
    const difference = (left[i] ?? -1) - (right[i] ?? -1);
    if (difference !== 0) return difference;
  }
  return 0;
}

/** Folders below `parent` whose names start with `prefix`, the highest number first; `parent/prefix` itself before all. */
function numbered(files: FileSystem, parent: string, prefix: string): string[] {
  const number = (name: string) => name.slice(prefix.length).replace(/^-/, '');
  return files
    .list(parent)
    .filter((name) => name.startsWith(prefix) && /^(-?\d+(\.\d+)*)?$/.test(name.slice(prefix.length)))
    .sort((a, b) => (number(a) === '' ? -1 : number(b) === '' ? 1 : compareVersions(number(b), number(a))))
    .map((name) => join(parent, name));
}

/** The folders that `/etc/ld.so.conf` names, with those of the files that it includes. */
function loaderConfiguration(files: FileSystem, file = '/etc/ld.so.conf', depth = 0): string[] {
  return (files.read(file) ?? '').split('\n').flatMap((line) => {
    const text = line.replace(/#.*/, '').trim();
    const included = /^include\s+(.+)$/.exec(text)?.[1];
    if (included === undefined) return text.startsWith('/') ? [text] : [];
    if (depth >= 4) return [];
    return included.split(/\s+/).flatMap((pattern) => {
      const path = pattern.startsWith('/') ? pattern : join(dirname(file), pattern);
      const name = path.slice(path.lastIndexOf('/') + 1);
      const matches = new RegExp(
        `^${name
          .replace(/[.+^${}()|[\]\\]/g, '\\$&')
          .replaceAll('*', '.*')
          .replaceAll('?', '.')}$`,
      );
      return [...files.list(dirname(path))]
        .filter((entry) => matches.test(entry))
        .sort()
        .flatMap((entry) => loaderConfiguration(files, join(dirname(path), entry), depth + 1));
    });
  });
}

/** Every folder that may hold a CUDA library, in order, each once. */
function places(options: SearchOptions, files: FileSystem): { driver: Place[]; all: Place[] } {
  const variables = options.variables ?? process.env;
  const home = options.home ?? homedir();
  const arm = (options.architecture ?? process.arch) === 'arm64';
  const multiarch = arm ? 'aarch64-linux-gnu' : 'x86_64-linux-gnu';
  const targets = arm ? ['sbsa-linux', 'aarch64-linux'] : ['x86_64-linux'];

  const toolkit = (root: string) => [
    join(root, 'lib64'),
    join(root, 'lib'),
    ...targets.map((target) => join(root, 'targets', target, 'lib')),
  ];
  const given = (
    [['GPUOS_CUDA_HOME', options.cudaHome], ...['CUDA_HOME', 'CUDA_PATH'].map((name) => [name, variables[name]])] as const
  ).flatMap(([from, root]) => (root ? [root, ...toolkit(root)].map((folder) => ({ folder, from: from as string })) : []));
  const libraryPath = (variables['LD_LIBRARY_PATH'] ?? '')
    .split(/[:;]/)
    .filter((folder) => folder !== '')
    .map((folder) => ({ folder, from: 'LD_LIBRARY_PATH' }));
  const loader = [
    ...loaderConfiguration(files),
    `/lib/${multiarch}`,
    `/usr/lib/${multiarch}`,
    '/lib64',
    '/usr/lib64',
    '/lib',
    '/usr/lib',
    '/usr/local/lib',
    // Where containers, WSL and NixOS put the driver.
    '/usr/local/nvidia/lib64',
    '/usr/local/nvidia/lib',
    '/usr/lib/wsl/lib',
    '/run/opengl-driver/lib',
  ].map((folder) => ({ folder, from: 'loader' }));
  const toolkits = [...numbered(files, '/usr/local', 'cuda'), ...numbered(files, '/opt', 'cuda')]
    .flatMap(toolkit)
    .map((folder) => ({ folder, from: 'toolkit' }));

  const working = options.workingFolder ?? process.cwd();
  // An active environment, one in the working folder, the interpreters on the path, the user's own packages.
  const interpreters = (variables['PATH'] ?? '')
    .split(':')
    .filter((folder) => folder.startsWith('/') && files.list(folder).some((name) => /^python3?$/.test(name)))
    .map((folder) => dirname(folder));
  const prefixes = [
    variables['VIRTUAL_ENV'],
    variables['CONDA_PREFIX'],
    join(working, '.venv'),
    join(working, 'venv'),
    ...interpreters,
  ].filter((prefix): prefix is string => prefix !== undefined && prefix !== '');
  const sites = [...prefixes, join(home, '.local'), '/usr/local', '/usr'].flatMap((prefix) =>
    numbered(files, join(prefix, 'lib'), 'python').flatMap((python) => [join(python, 'site-packages'), join(python, 'dist-packages')]),
  );
  const conda = variables['CONDA_PREFIX'] ? toolkit(variables['CONDA_PREFIX']) : [];
  const packages = sites.flatMap((site) => {
    // `nvidia/cu13/lib` holds all of CUDA 13; before it each package had its own folder.
    const folders = [...files.list(join(site, 'nvidia'))].sort().reverse();
    const whole = folders.filter((name) => /^cu\d+$/.test(name));
    const single = folders.filter((name) => !whole.includes(name));
    // With none of them the folder itself stands in the list of what was tried.
    if (folders.length === 0) return [join(site, 'nvidia')];
    return [...whole, ...single].map((name) => join(site, 'nvidia', name, 'lib'));
  });
  const pip = [...conda.map((folder) => ({ folder, from: 'conda' })), ...packages.map((folder) => ({ folder, from: 'pip' }))];

  const once = (list: Place[]) => list.filter(({ folder }, i) => list.findIndex((other) => other.folder === folder) === i);
  return {
    driver: once([...given, ...libraryPath, ...loader]),
    all: once([...given, ...libraryPath, ...loader, ...toolkits, ...pip]),
  };
}

/** Looks for one library. Loads nothing and never throws. */
export function findLibrary(name: LibraryName, options: SearchOptions = {}): SearchResult {
  const files = options.files ?? realFiles;
  const { stem, majors, ofDriver } = LIBRARIES[name];
  const { driver, all } = places(options, files);
  const candidates: Candidate[] = [];
  const unsupported: Candidate[] = [];
  const tried: string[] = [];
  for (const { folder, from } of ofDriver ? driver : all) {
    tried.push(folder);
    const versions = files
      .list(folder)
      .filter((file) => file.startsWith(stem) && /^(\.\d+)*$/.test(file.slice(stem.length)))
      .map((file) => ({ file, version: file.slice(stem.length + 1) }))
      // The driver is known by its one name: `libcuda.so` is for linking, `libcuda.so.580.1` the file behind it.
      .filter(({ version }) => !ofDriver || majors.map(String).includes(version))
      .sort((a, b) => compareVersions(b.version, a.version));
    for (const { file, version } of versions) {
      const usable = version === '' || majors.includes(Number(version.split('.')[0]));
      (usable ? candidates : unsupported).push({ path: join(folder, file), from, version });
    }
  }
  for (const major of majors) candidates.push({ path: `${stem}.${major}`, from: 'loader', version: String(major) });
  return { candidates, unsupported, tried };
}
