/** The tensor engines that the tfjs backend is tested on: the reference (the truth of what kernels mean) and the real one. */
import type { RingEngine } from '../src/integrations/tfjs/record.ts';
import { init } from '../src/runtime/system.ts';
import { engineOf } from '../src/tensor/engine.ts';
import { EagerEngine } from './eager-engine.ts';

export interface OpenedEngine {
  readonly engine: RingEngine;
  /** Tensors that nobody has disposed of, where the engine counts them. */
  live(): number;
  close(): Promise<void>;
}

function openReference(): OpenedEngine {
  const engine = new EagerEngine();
  return { engine, live: () => engine.live, close: async () => {} };
}

function openWasm(): OpenedEngine {
  const system = init({ workers: 1, memoryMib: 128 });
  return { engine: engineOf(system).forFramework() as unknown as RingEngine, live: () => 0, close: () => system.shutdown() };
}

export const ENGINES = [
  { name: 'reference', open: openReference },
  { name: 'wasm', open: openWasm },
] as const;
