/**
 * Keeps our backend selected. The engine of tfjs is one object for all copies of tfjs in the process, so what another
 * module selects after our import silently wins; we see it by standing in front of the engine's setBackend.
 */
import { ERRORS, GpuosError } from '../../errors.ts';
import { BACKEND, tfjsEngine } from './tfjs.ts';

export type TakeoverMode = 'warn' | 'force';

/**
 * Selects our backend now, also while another one is still starting: its start is made obsolete, as it would replace
 * ours when it ends.
 */
export function selectBackend(): void {
  const engine = tfjsEngine();
  if (engine.pendingBackendInit !== null) {
    engine.pendingBackendInitId++;
    engine.pendingBackendInit = null;
  }
  // Our factory is synchronous, so the selection is done when this returns.
  void engine.setBackend(BACKEND);
}

/**
 * Watches which backend is selected from now on. `warn` says once that ours was replaced, and what to do; `force`
 * selects ours instead, and says so once with `inform`.
 *
 * @returns a function that ends the watch
 */
export function watchBackend(mode: TakeoverMode, warn: (message: string) => void, inform: (message: string) => void): () => void {
  const engine = tfjsEngine();
  const own = Object.hasOwn(engine, 'setBackend');
  const original = engine.setBackend;
  let told = false;
  const watched = (name: string): Promise<boolean> => {
    if (name === BACKEND) return original.call(engine, name);
    const first = !told;
    told = true;
    if (mode === 'force') {
      if (first) inform(`Another module selected the tfjs backend "${name}"; "${BACKEND}" stays selected (GPUOS_TFJS=force).`);
      return original.call(engine, BACKEND);
    }
    if (first) {
      const code = 'GPUOS_BACKEND_TAKEN_OVER';
      warn(`Another module selected the tfjs backend "${name}" in place of "${BACKEND}". [${code}] ${ERRORS[code]}`);
    }
    return original.call(engine, name);
  };
  engine.setBackend = watched;
  return () => {
    // Somebody may have wrapped it again since; then ours stays below, and only passes calls on.
    if (engine.setBackend === watched) {
      if (own) engine.setBackend = original;
      else delete (engine as Partial<typeof engine>).setBackend;
    }
    told = true;
    mode = 'warn';
  };
}

/**
 * Once our backend is taken out: if the program goes on without choosing another, tfjs chooses one itself, and its results
 * would come from elsewhere without a word. `warn` then says which it is. A program that chooses one is told nothing.
 */
export function warnOfSuccessor(warn: (message: string) => void): void {
  const engine = tfjsEngine();
  const { setBackend, getSortedBackends } = engine;
  // A version of tfjs that chooses in another way.
  if (typeof getSortedBackends !== 'function') return;
  const hooks = [Object.hasOwn(engine, 'setBackend'), Object.hasOwn(engine, 'getSortedBackends')];
  let chosenByTfjs = false;
  const sorted = (): string[] => {
    if (Object.keys(engine.registryFactory).length === 0)
      throw new GpuosError('GPUOS_SHUT_DOWN', `The tfjs backend "${BACKEND}" has been shut down, and no other is there.`);
    // tfjs asks for the list only to choose for itself.
    chosenByTfjs = engine.backendInstance === null;
    return getSortedBackends.call(engine);
  };
  let told = false;
  const selected = (name: string): Promise<boolean> => {
    restore();
    if (chosenByTfjs && !told) {
      warn(
        `The tfjs backend "${BACKEND}" has been shut down; TensorFlow.js goes on with "${name}". [GPUOS_SHUT_DOWN] Call tf.setBackend("${name}") after shutdown() if that is meant.`,
      );
    }
    told = true;
    // Somebody may have wrapped it since; then this one stays below, and only passes calls on.
    return setBackend.call(engine, name);
  };
  const restore = (): void => {
    if (engine.setBackend === selected) {
      if (hooks[0]) engine.setBackend = setBackend;
      else delete (engine as Partial<typeof engine>).setBackend;
    }
    if (engine.getSortedBackends === sorted) {
      if (hooks[1]) engine.getSortedBackends = getSortedBackends;
      else delete (engine as Partial<typeof engine>).getSortedBackends;
    }
  };
  engine.setBackend = selected;
  engine.getSortedBackends = sorted;
}
