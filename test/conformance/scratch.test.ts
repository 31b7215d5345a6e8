import { it } from 'vitest';
import { engineOf } from '../../src/tensor/engine.ts';
import { init } from '../../src/runtime/system.ts';
import { HeapWatch } from './memory.ts';
import { randomScript, type Script, type Step } from './graph.ts';
import { tell, play, compare } from './fusion.test.ts';
it('x', async () => {
  const system = init({ workers: +(process.env.W ?? 1), memoryMib: 64 });
  new HeapWatch(system);
  const e = engineOf(system);
  const fails = async (script: Script) => {
    for (let k = 0; k < 3; k++) for (const fused of process.env.U ? [false, true] : [true]) {
      system.fused = fused;
      try { const r = await play(e, script); compare(script, r, 'x'); } catch (error) { return String(error); }
    }
    return undefined;
  };
  const full = randomScript(+process.env.S!, +process.env.N!);
  let steps: readonly Step[] = full.steps;
  let why = await fails(full);
  if (!why) { console.log('does not fail'); return; }
  for (let again = true; again; ) {
    again = false;
    for (let i = steps.length - 1; i >= 0; i--) {
      const gone = new Set<number>();
      const rest: Step[] = [];
      steps.forEach((step, at) => {
        if (at === i) { if (step.kind === 'leaf') gone.add(step.value); if (step.kind === 'apply') step.outputs.forEach((o) => gone.add(o)); return; }
        if (step.kind === 'apply' && step.inputs.some((o) => gone.has(o))) { step.outputs.forEach((o) => gone.add(o)); return; }
        if ((step.kind === 'read' || step.kind === 'dispose') && gone.has(step.value)) return;
        rest.push(step);
      });
      const smaller = { ...full, steps: rest };
      const w = await fails(smaller);
      if (w) { steps = rest; why = w; again = true; i = Math.min(i, steps.length); }
    }
  }
  console.log(why + '\n' + tell({ ...full, steps }));
  await system.shutdown();
});
