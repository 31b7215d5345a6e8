/**
 * The library for large products, beside a resident kernel. Which of its algorithms can be used there is found out for each
 * form of products when the first of that form is asked for, and remembered for later processes: the kernel leaves, so that
 * what has to be loaded can be, and what has room beside it by reckoning runs once; then the kernel comes back, and the same
 * runs beside it. What does not come to an end there, or waits for the kernel after all, is left out; of the rest the
 * fastest is taken. Nothing may be under way meanwhile.
 */
import { realpathSync } from 'node:fs';
import { GpuosError } from '../../../errors.ts';
import type { MatrixProduct } from '../../backend.ts';
import { type Algorithm, CublasLt } from '../cublas.ts';
import { CudaError } from '../cuda-error.ts';
import { type Candidate as LibraryFile, findLibrary, type SearchResult } from '../discovery.ts';
import type { CudaDriver } from '../driver.ts';
import { driverIdentity } from '../driver-identity.ts';
import type { Address } from '../library.ts';
import { type BlockShape, leftBeside } from './block-room.ts';
import type { CallGuard } from './call-guard.ts';
import { isFatal } from './ending.ts';
import { toFailure } from './failure.ts';
import { type ChosenWay, fileIdentity, type KnownWay, KnownWays } from './known-ways.ts';
import { OpenLibrary, type Pointers } from './open-library.ts';
import { type Candidates, findCandidates } from './product-candidates.ts';
import { formOf, formText, type ProductForm, ProductTrial } from './product-trial.ts';
import type { MeasuredProduct, ProductsAsk, ProductsReport, ProductWay } from './requests.ts';

/** The product that algorithms are tried with: large enough for blocks on every multiprocessor. */
const TRIED_N = 2048;
/** How long it may take beside the kernel; tens of times what slow devices need. Runs that are timed. */
const TRY_MS = 50;
const TIMED_RUNS = 3;
/** How many tries may fail, and how long all may take. */
const MOST_REFUSED = 4;
const PROVE_MS = 1500;
/** cuBLAS recommends so much, from Hopper on and before. */
const WORKSPACE_BYTES = { large: 32 << 20, small: 4 << 20 } as const;

/** Products whose first proposal is kept. */
const MOST_ALONE = 1024;
/** Products between two looks at the time where they are measured, and how long the kernel then is left alone before. */
const MEASURED_BATCH = 10;
const SETTLE_MS = 500;

export interface ProductParts {
  readonly driver: CudaDriver;
  readonly device: number;
  readonly guard: CallGuard;
  readonly cudaHome: string | undefined;
  readonly major: number;
  /** Of the resident kernel. */
  block(): BlockShape;
  allocate(bytes: number): Address;
}

/** The resident kernel, as far as it has to make room. */
export interface KernelControl {
  /** Has it leave, runs `meanwhile`, and launches it again. */
  without<T>(meanwhile: () => T): T;
  /** See `ResidentHost.stepAside`. */
  stepAside(queue: number, sequence: number, work: (stream: Address) => void): { readonly error?: CudaError } | undefined;
}

/** Products of one type and transposition, and what was found out of them. */
interface Form extends ProductForm {
  proposed: number;
  fitted: number;
  tried: number;
  refused: number;
  chosen: ChosenWay | undefined;
  remembered: boolean;
  prepareMs: number;
  problem: string | undefined;
}

/** A form as far as it is known without the kernel. */
interface Begun {
  /** What the outcome depends on. */
  readonly facts: readonly unknown[];
  readonly known: KnownWay | undefined;
  /** Not where it is known that there is no way. */
  readonly trial: ProductTrial | undefined;
  readonly candidates: Candidates;
}

const NO_CANDIDATES: Candidates = { proposed: 0, fitted: 0, list: [] };

export class ProductLibrary {
  readonly #parts: ProductParts;
  readonly #search: SearchResult;
  readonly #newestMajor: number;
  readonly #known: KnownWays;
  readonly #forms = new Map<string, Form>();
  /** What the library proposes first, by product: asking it takes some 20 us. */
  readonly #alone = new Map<string, Algorithm>();
  #found: ProductsReport['library'];
  #library: CublasLt | undefined;
  #open: OpenLibrary | undefined;
  #unavailable: string | undefined;

  /**
   * Looks for the library's file; loads it only where it has to be there, or where the loader alone knows of any.
   * @throws GPUOS_CUDA_UNAVAILABLE, GPUOS_CUDA_TOO_OLD
   */
  constructor(parts: ProductParts, { cacheFolder, insist }: ProductsAsk) {
    const { driver, cudaHome } = parts;
    this.#parts = parts;
    this.#known = new KnownWays(cacheFolder);
    this.#search = findLibrary('cublas', { cudaHome });
    this.#newestMajor = Math.floor(driver.version() / 1000);
    const file = this.#search.candidates.find(
      ({ path, version }) => path.startsWith('/') && !(Number.parseInt(version, 10) > this.#newestMajor),
    );
    if (insist || file === undefined) this.#library = this.#load();
    this.#found = this.#library === undefined ? described(file as LibraryFile) : described(this.#library);
  }

  /** Where products run: once a form was prepared. */
  get stream(): Address {
    return this.#opened.stream;
  }

  /** Why no products are taken any more. */
  get unavailable(): string | undefined {
    return this.#unavailable;
  }

  /** From here on none is. */
  disable(why: string): void {
    this.#unavailable ??= why;
  }

  get report(): ProductsReport {
    const ways = [...this.#forms.values()].map(({ chosen, problem, prepareMs, ...form }): ProductWay => {
      const us = chosen === undefined ? undefined : Math.round(chosen.us * 10) / 10;
      return { ...form, prepareMs: Math.round(prepareMs), ...(us !== undefined && { us }), ...(problem !== undefined && { problem }) };
    });
    return { library: this.#found, ways, n: TRIED_N, ...(this.#unavailable !== undefined && { unavailable: this.#unavailable }) };
  }

  /** Whether it is known if `multiply` takes products of this form. */
  knows(product: MatrixProduct): boolean {
    return this.#unavailable !== undefined || this.#forms.has(formText(formOf(product)));
  }

  /** Whether `multiply` takes it. */
  fits(product: MatrixProduct): boolean {
    const chosen = this.#chosen(product);
    return this.#unavailable === undefined && chosen !== undefined && this.#opened.accepts(product, chosen.algorithm);
  }

  /**
   * Launches it on another stream in the way that the library takes for the fastest, where the kernel leaves for it: what has to be
   * loaded for that waits until it has left. @throws CudaError
   */
  multiplyAlone(product: MatrixProduct, pointers: Pointers, stream: Address): void {
    const open = this.#opened;
    const key = JSON.stringify(product);
    let algorithm = this.#alone.get(key);
    if (algorithm === undefined) {
      algorithm = open.library.algorithms(product, open.workspaceBytes, 1)[0] ?? this.#chosen(product)?.algorithm;
      if (algorithm === undefined) throw new GpuosError('GPUOS_INTERNAL', `There is no way for a product of ${formText(formOf(product))}.`);
      if (this.#alone.size >= MOST_ALONE) this.#alone.clear();
      this.#alone.set(key, algorithm);
    }
    open.launch(product, algorithm, pointers, stream);
  }

  /** Launches it on the stream. @throws CudaError */
  multiply(product: MatrixProduct, pointers: Pointers): void {
    const chosen = this.#chosen(product);
    if (chosen === undefined)
      throw new GpuosError('GPUOS_INTERNAL', `A product of ${formText(formOf(product))} was begun, and there is no way for it.`);
    this.#opened.launch(product, chosen.algorithm, pointers);
  }

  /**
   * Finds out how products of this one's form are done, while nothing is under way. The kernel leaves to have things loaded
   * and to have memory given back, and once for each algorithm that does not come to an end beside it. @throws CudaError of a fault
   */
  prepare(product: MatrixProduct, kernel: KernelControl): void {
    const from = performance.now();
    const none = { proposed: 0, fitted: 0, tried: 0, refused: 0, chosen: undefined, problem: undefined };
    const form: Form = { ...formOf(product), ...none, remembered: false, prepareMs: 0 };
    this.#forms.set(formText(form), form);
    try {
      this.#find(form, kernel);
    } catch (error) {
      if (isFatal(error) || !(error instanceof GpuosError)) throw error;
      form.problem = toFailure(error).message;
      if (this.#open === undefined) this.disable(form.problem);
    }
    form.prepareMs = performance.now() - from;
  }

  /**
   * What a square product takes on the device, in us, in turn: beside the kernel; without it in the same way; and without
   * it in the way that the library takes for the fastest, which need not run beside it. Its form was prepared.
   * @throws GPUOS_BAD_OPTION, GPUOS_OUT_OF_MEMORY, CudaError
   */
  measure(product: MatrixProduct, rounds: number, kernel: KernelControl): MeasuredProduct {
    const { driver } = this.#parts;
    const chosen = this.#chosen(product);
    if (chosen === undefined || !this.fits(product)) {
      const why = this.#unavailable ?? this.#forms.get(formText(formOf(product)))?.problem;
      const text = `No way is known for products of ${product.n} x ${product.n} ${product.dtype}`;
      throw new GpuosError('GPUOS_BAD_OPTION', why === undefined ? `${text}.` : `${text}: ${why}`);
    }
    const open = this.#opened;
    const trial = kernel.without(() => new ProductTrial(driver, open.stream, formOf(product), product.n, 'random'));
    const events = [driver.createEvent(true), driver.createEvent(true)] as const;
    try {
      const [fastest = chosen.algorithm] = open.library.algorithms(product, open.workspaceBytes, 1);
      const time = (algorithm: Algorithm): number => this.#timed(trial, algorithm, events);
      const measured: { beside: number[]; without: number[]; fastest: number[] } = { beside: [], without: [], fastest: [] };
      for (let round = -1; round < rounds; round++) {
        pause(SETTLE_MS);
        const beside = time(chosen.algorithm);
        const [without, alone] = kernel.without(() => [time(chosen.algorithm), time(fastest)] as const);
        // The first one warms up.
        if (round < 0) continue;
        measured.beside.push(beside);
        measured.without.push(without);
        measured.fastest.push(alone);
      }
      return measured;
    } finally {
      for (const event of events) driver.destroyEvent(event);
      kernel.without(() => trial.free());
    }
  }

  #chosen(product: MatrixProduct): ChosenWay | undefined {
    return this.#forms.get(formText(formOf(product)))?.chosen;
  }

  get #opened(): OpenLibrary {
    if (this.#open === undefined) throw new GpuosError('GPUOS_INTERNAL', 'cuBLAS is not open.');
    return this.#open;
  }

  #load(): CublasLt {
    return new CublasLt(this.#search, this.#newestMajor);
  }

  #find(form: Form, kernel: KernelControl): void {
    const { facts, known, trial, candidates } = kernel.without(() => this.#begin(form));
    try {
      if (known !== undefined && this.#isStillTrue(known, trial, kernel)) {
        Object.assign(form, known, { remembered: true });
        return;
      }
      if (trial === undefined) throw new GpuosError('GPUOS_INTERNAL', 'There is no memory to try algorithms in.');
      // What was remembered was the one thing to be loaded.
      const all = known === undefined ? candidates : kernel.without(() => this.#candidates(form, trial));
      this.#prove(form, trial, all, kernel);
    } finally {
      if (trial !== undefined) kernel.without(() => trial.free());
    }
    this.#known.write(facts, form);
  }

  /** What can be done without the kernel only: what is remembered is loaded, or else all that may have room beside it. */
  #begin(form: Form): Begun {
    const { driver } = this.#parts;
    this.#library ??= this.#load();
    this.#found = described(this.#library);
    const facts = this.#facts(form, this.#library);
    const known = this.#known.read(facts);
    if (known !== undefined && known.chosen === undefined) return { facts, known, trial: undefined, candidates: NO_CANDIDATES };
    this.#open ??= this.#newOpen(this.#library);
    const trial = new ProductTrial(driver, this.#open.stream, form, TRIED_N, 'ones');
    try {
      if (known?.chosen !== undefined && this.#loads(trial, known.chosen.algorithm))
        return { facts, known, trial, candidates: NO_CANDIDATES };
      return { facts, known: undefined, trial, candidates: this.#candidates(form, trial) };
    } catch (error) {
      if (!isFatal(error)) trial.free();
      throw error;
    }
  }

  #newOpen(library: CublasLt): OpenLibrary {
    const { driver, allocate } = this.#parts;
    const bytes = this.#workspaceBytes;
    return new OpenLibrary(library, driver.createStream(), { address: allocate(bytes), bytes });
  }

  get #workspaceBytes(): number {
    return this.#parts.major >= 9 ? WORKSPACE_BYTES.large : WORKSPACE_BYTES.small;
  }

  /** All that decides which way is taken, and whether it is one. */
  #facts(form: ProductForm, { path, version }: CublasLt): readonly unknown[] {
    const { driver, device, block } = this.#parts;
    const gpu = [driver.deviceName(device), driver.computeCapability(device), leftBeside(driver, device, block())];
    const library = [path, fileIdentity(path), version, this.#workspaceBytes];
    return [...gpu, driverIdentity(driver.path), driver.version(), ...library, block(), TRIED_N, formText(form)];
  }

  /** Those that may have room beside the kernel, each loaded by a run. */
  #candidates(form: Form, trial: ProductTrial): Candidates {
    const { driver, device, block } = this.#parts;
    const found = findCandidates(driver, this.#opened, form, trial, leftBeside(driver, device, block()));
    return { ...found, list: found.list.filter(({ algorithm }) => this.#loads(trial, algorithm)) };
  }

  /** Runs it while no resident kernel does; whether it can be used, as far as that shows. */
  #loads(trial: ProductTrial, algorithm: Algorithm): boolean {
    if (!this.#opened.accepts(trial.product, algorithm)) return false;
    try {
      trial.poison();
      this.#opened.launch(trial.product, algorithm, trial.pointers);
      return trial.isRight();
    } catch (error) {
      if (isFatal(error) || !(error instanceof CudaError)) throw error;
      return false;
    }
  }

  /** That there is no way, or whether the one that there was is one now. */
  #isStillTrue({ chosen }: KnownWay, trial: ProductTrial | undefined, kernel: KernelControl): boolean {
    return chosen === undefined || (trial !== undefined && typeof this.#beside(trial, chosen.algorithm, 1, kernel) === 'number');
  }

  #prove(form: Form, trial: ProductTrial, { proposed, fitted, list }: Candidates, kernel: KernelControl): void {
    Object.assign(form, { proposed, fitted, tried: 0, refused: 0 });
    const until = performance.now() + PROVE_MS;
    let tooMuch = Number.POSITIVE_INFINITY;
    for (const { algorithm, needed } of list) {
      if (form.refused >= MOST_REFUSED || performance.now() > until) return;
      // Registers are reckoned exactly; of the shared memory there may be less than that.
      if (needed !== undefined && needed.sharedBytes >= tooMuch) continue;
      form.tried++;
      const us = this.#beside(trial, algorithm, TIMED_RUNS, kernel);
      if (typeof us === 'number') {
        if (form.chosen === undefined || us < form.chosen.us) form.chosen = { algorithm, us };
        continue;
      }
      form.refused++;
      if (us === 'no end') tooMuch = Math.min(tooMuch, needed?.sharedBytes ?? tooMuch);
    }
  }

  /** The time in us beside the kernel, or why it cannot be used there. */
  #beside(trial: ProductTrial, algorithm: Algorithm, runs: number, kernel: KernelControl): number | 'no end' | 'wrong' {
    const { driver, guard } = this.#parts;
    const { stream } = this.#opened;
    let best = Number.POSITIVE_INFINITY;
    trial.poison();
    for (let run = 0; run < runs; run++) {
      const from = performance.now();
      const { late, error } = guard.run(() => this.#opened.launch(trial.product, algorithm, trial.pointers));
      if (error !== undefined && (isFatal(error) || !(error instanceof CudaError))) throw error;
      if (error !== undefined || late || !this.#isDone(from + TRY_MS)) {
        // With the kernel gone it comes to its end.
        kernel.without(() => driver.synchronizeStream(stream));
        return error !== undefined || late ? 'wrong' : 'no end';
      }
      best = Math.min(best, (performance.now() - from) * 1000);
    }
    return trial.isRight() ? best : 'wrong';
  }

  #isDone(until: number): boolean {
    // The last look comes after the time: this process may have stood still in between.
    for (let over = false; ; over = performance.now() > until) {
      if (this.#parts.driver.streamDone(this.#opened.stream)) return true;
      if (over) return false;
    }
  }

  /** Of one product, in us, from a batch of them that follow one another on the device. */
  #timed({ product, pointers }: ProductTrial, algorithm: Algorithm, [start, end]: readonly [Address, Address]): number {
    const { driver } = this.#parts;
    const { stream } = this.#opened;
    driver.recordEvent(start, stream);
    for (let i = 0; i < MEASURED_BATCH; i++) this.#opened.launch(product, algorithm, pointers);
    driver.recordEvent(end, stream);
    driver.synchronizeStream(stream);
    return (driver.elapsedMs(start, end) * 1000) / MEASURED_BATCH;
  }
}

/** The version by the file's name, or by that of the file that the name leads to, until the library itself tells. */
function described({ path, from, version }: Pick<LibraryFile, 'path' | 'from' | 'version'>): ProductsReport['library'] {
  if (version !== '') return { path, from, version };
  try {
    return { path, from, version: /\.so\.([\d.]+)$/.exec(realpathSync(path))?.[1] ?? 'of unknown version' };
  } catch {
    return { path, from, version: 'of unknown version' };
  }
}

const never = new Int32Array(new SharedArrayBuffer(4));
const pause = (ms: number): void => void Atomics.wait(never, 0, 0, ms);
