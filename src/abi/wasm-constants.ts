/** Prints the constants of the WebAssembly device; `scripts/build.mjs` runs it. */
import { wasmConstants } from './headers.ts';

process.stdout.write(wasmConstants());
