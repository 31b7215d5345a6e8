/** Operators that no template gives: ones that report a failure, never end, or wait for a word. Written as WebAssembly text. */
import wabt from 'wabt';
import { FLAG } from '../src/abi/status.ts';
import { NO_ORDER } from '../src/runtime/queue.ts';
import type { System } from '../src/runtime/system.ts';

const { parseWat } = await wabt();

/** Runs until the word that its first pointer names is no longer 0. */
export const UNTIL_WORD = '(loop $again (br_if $again (i32.eqz (i32.atomic.load (i32.load (local.get $params)))))) (i32.const 0)';
export const FOR_EVER = '(loop $again (br $again)) (unreachable)';
/** Ends at once with a status. */
export const endsWith = (status: number): string => `(i32.const ${status})`;

/** The first slot of the operator table that tests use for these; inject() fills the table from below. */
const FIRST_SLOT = 4000;

/** Puts an operator with this body into the table, `index` slots past the first; its id. Its parameter block is `$params`. */
export function handMade(system: System, body: string, index = 0): number {
  const text = `(module
    (import "env" "memory" (memory 0 65536 shared))
    (func (export "f") (param $params i32) (param $tile i32) (param $tiles i32) (param $scratch i32) (result i32) ${body}))`;
  const module = parseWat('operator.wat', text, { threads: true });
  const { fn } = system.device.install({ bytes: module.toBinary({}).buffer });
  module.destroy();
  const queue = system.queue(0);
  const publish = [1, FIRST_SLOT + index, fn, 1];
  const sequence = queue.writeInline(system.operators.builtIn('controlTable'), 1, [], publish, NO_ORDER, FLAG.BARRIER);
  queue.waitSync(sequence);
  return FIRST_SLOT + index;
}
