import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { checkAgainstHeader, compileFakes, type Fake, fake, NO_COMPILER, nvrtcHeaders, reason } from '../../../test/cuda/fakes.ts';
import { GpuosError } from '../../errors.ts';
import { CudaError } from './cuda-error.ts';
import { findLibrary } from './discovery.ts';
import { Nvrtc } from './nvrtc.ts';

function thrown(action: () => unknown): GpuosError {
  try {
    action();
  } catch (error) {
    if (error instanceof GpuosError) return error;
    throw error;
  }
  throw new Error('nothing was thrown');
}

const text = (bytes: Uint8Array) => Buffer.from(bytes).toString();

describe.skipIf(NO_COMPILER)(reason('Nvrtc'), () => {
  let folder: ReturnType<typeof compileFakes>;
  let library: Fake;
  beforeAll(() => {
    folder = compileFakes(['nvrtc']);
    library = fake(folder.folder, 'nvrtc');
  });
  afterAll(() => folder?.remove());

  it('knows its version and what it compiles for', () => {
    expect(new Nvrtc(library.search)).toMatchObject({ version: [13, 0], architectures: [75, 90, 100], from: 'test' });
  });

  it('passes source, headers and options, and gives a cubin or PTX', () => {
    const nvrtc = new Nvrtc(library.search);
    library.calls();
    const headers = { 'abi.h': '#define A', 'b.h': '' };
    const cubin = nvrtc.compile({
      source: 'void f();',
      name: 'f.cu',
      headers,
      target: 'sm_90',
      options: ['-maxrregcount=126', '-rdc=true'],
    });
    expect({ image: text(cubin.image), log: cubin.log }).toEqual({ image: '--gpu-architecture=sm_90|void f();', log: '' });
    expect(library.calls()).toEqual([
      'nvrtcCreateProgram f.cu 2 abi.h=#define A b.h=',
      'nvrtcCompileProgram 7f0000007000 3 --gpu-architecture=sm_90 -maxrregcount=126 -rdc=true',
      'nvrtcGetProgramLogSize',
      'nvrtcGetProgramLog',
      'nvrtcGetCUBINSize',
      'nvrtcGetCUBIN',
      'nvrtcDestroyProgram 7f0000007000',
    ]);
    // The driver wants PTX with its NUL.
    expect(text(nvrtc.compile({ source: 'x', name: 'x.cu', target: 'compute_75' }).image)).toBe('--gpu-architecture=compute_75|x\0');
    expect(text(nvrtc.compile({ source: 'x', name: 'x.cu', target: 'sm_90a' }).image)).toBe('--gpu-architecture=sm_90a|x');
  });

  it('gives the log of what does not compile, and frees the program', () => {
    const nvrtc = new Nvrtc(library.search);
    const error = thrown(() => nvrtc.compile({ source: '#error', name: 'k.cu', target: 'sm_75' }));
    expect(error).toBeInstanceOf(CudaError);
    expect(error.code).toBe('GPUOS_COMPILE_FAILED');
    expect(error.message).toContain('k.cu was not compiled (NVRTC_ERROR_COMPILATION):\nk.cu(1): error: #error\n');
    expect(library.calls().at(-1)).toBe('nvrtcDestroyProgram 7f0000007000');
  });

  it('tells a fault of the library from one of the source', () => {
    const nvrtc = new Nvrtc(library.search);
    library.result('nvrtcCompileProgram', 11);
    const error = thrown(() => nvrtc.compile({ source: 'x', name: 'k.cu', target: 'sm_75' }));
    library.result('nvrtcCompileProgram', 0);
    expect(error.code).toBe('GPUOS_CUDA_CALL_FAILED');
    expect(error.message).toContain('nvrtcCompileProgram answered NVRTC_ERROR_INTERNAL_ERROR (11).');
  });

  it('refuses a target that it does not know', () => {
    const nvrtc = new Nvrtc(library.search);
    const error = thrown(() => nvrtc.compile({ source: '', name: 'k.cu', target: 'sm_120' }));
    expect(error.code).toBe('GPUOS_CUDA_TOO_OLD');
    expect(error.message).toMatch(/NVRTC 13\.0 .* does not compile for sm_120, but for 75, 90, 100\./);
  });

  it('is not taken where the driver cannot load what it makes, or gpuos does not know it', () => {
    expect(new Nvrtc(library.search, 13).version).toEqual([13, 0]);
    const newer = thrown(() => new Nvrtc(library.search, 12));
    expect(newer.code).toBe('GPUOS_CUDA_TOO_OLD');
    expect(newer.message).toContain('it is version 13.0, and the driver supports CUDA 12 at most');
    library.value('nvrtc', 11);
    expect(thrown(() => new Nvrtc(library.search)).message).toContain('it is version 11.0');
    library.value('nvrtc', 13);
  });
});

const real = findLibrary('nvrtc').candidates.find(({ path }) => path.startsWith('/'));
describe.skipIf(real === undefined)(`NVRTC itself${real ? '' : ' (skipped: not on this machine)'}`, () => {
  const source = '#include "a.h"\nextern "C" __device__ void scale(float *p) { p[threadIdx.x] *= FACTOR; }';
  const headers = { 'a.h': '#define FACTOR 3.0f' };

  it('makes a relocatable cubin: an ELF file of this device', () => {
    const { image } = new Nvrtc().compile({
      source,
      name: 'scale.cu',
      headers,
      target: 'sm_90',
      options: ['--relocatable-device-code=true'],
    });
    expect([...image.subarray(0, 5)]).toEqual([0x7f, 0x45, 0x4c, 0x46, 2]);
    // e_machine is EM_CUDA.
    expect(image[18]! | (image[19]! << 8)).toBe(190);
    expect(text(image)).toContain('.text.scale');
  });

  it('makes PTX', () => {
    expect(text(new Nvrtc().compile({ source, name: 'scale.cu', headers, target: 'compute_75' }).image)).toContain('.target sm_75');
  });

  it('says what is wrong, with the line', () => {
    const error = thrown(() => new Nvrtc().compile({ source: `${source}\nint wrong(`, name: 'scale.cu', headers, target: 'sm_90' }));
    expect(error.code).toBe('GPUOS_COMPILE_FAILED');
    expect(error.message).toMatch(/error:/);
    expect(thrown(() => new Nvrtc().compile({ source, name: 'k.cu', headers, target: 'sm_90', options: ['--no-such'] })).message).toContain(
      '--no-such',
    );
  });
});

const include = real && nvrtcHeaders(real.path);
const why = NO_COMPILER ? 'no C compiler' : include === undefined ? 'no nvrtc.h on this machine' : undefined;
it.skipIf(why !== undefined)(`the stand-in has the prototypes of nvrtc.h${why ? ` (skipped: ${why})` : ''}`, () => {
  expect(checkAgainstHeader('nvrtc', include!)).toBe('');
});
