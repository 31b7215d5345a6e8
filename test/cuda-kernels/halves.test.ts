import { vi } from 'vitest';
import { emulated } from './runner.ts';

vi.mock('../wasm-kernels/runner.ts', async (original) => (await import('./runner.ts')).onEmulation(await original()));

emulated(() => import('../wasm-kernels/halves.test.ts'));
