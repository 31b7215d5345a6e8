/**
 * gpuos: a resident runtime. The system calls are functions of this module that act on the one running
 * system; init() returns it as well.
 */
import { engineOf, type Engine } from './tensor/engine.ts';
import { requireSystem, type System, type SystemOptions, type Task, type TaskRequest } from './runtime/system.ts';
import { GpuosError } from './errors.ts';
import * as system from './runtime/system.ts';
import { formatValue } from './ops/shape.ts';
import type { TemplateParameters, Template } from './ops/template.ts';
import type { InjectedOperator } from './runtime/operators.ts';
import type { DType, Shape } from './ops/define.ts';
import type { Tensor } from './tensor/tensor.ts';

export { GpuosError, ERRORS, type ErrorCode } from './errors.ts';
export { inspectDevices, type DeviceReport } from './backends/inspect.ts';
export { OPERATORS } from './ops/index.ts';
export { current } from './runtime/system.ts';
export type { System, SystemOptions, Task, TaskRequest, QueueState, DeviceBuffer } from './runtime/system.ts';
export type { WorkerStatus } from './backends/backend.ts';
export type { InjectedOperator } from './runtime/operators.ts';
export type { Template, TemplateParameters } from './ops/template.ts';
export type { Tensor } from './tensor/tensor.ts';
export type { Engine, EngineCounters } from './tensor/engine.ts';
export type { Attributes, DType, Shape } from './ops/define.ts';

/**
 * Starts the system: memory, rings, resident workers. One at a time.
 * @throws GPUOS_ALREADY_INITIALIZED, GPUOS_BAD_OPTION, GPUOS_UNKNOWN_DEVICE, GPUOS_NO_SHARED_MEMORY
 */
export function init(options?: SystemOptions): System {
  return system.init(options);
}

/** The tensor engine of the running system. */
export function engine(): Engine {
  return engineOf(requireSystem());
}

/**
 * Whether recorded operations are fused into few tasks. With it off each is a task of its own; they are recorded
 * and submitted as before. A change applies to what is recorded from then on.
 */
export function fuse(enabled: boolean): void {
  const running = requireSystem();
  if (typeof enabled !== 'boolean') throw new GpuosError('GPUOS_BAD_OPTION', `fuse() takes true or false, not ${formatValue(enabled)}.`);
  running.checkOpen();
  engineOf(running).flush();
  running.fused = enabled;
}

/** Every `tiles` tiles a worker gives its core away once; 0 (the default): never. */
export function setYieldEvery(tiles: number): void {
  requireSystem().setYieldEvery(tiles);
}

/** Head, tail and processed counts of a queue. */
export function peekQueue(queue = 0): system.QueueState {
  return requireSystem().peekQueue(queue);
}

/** Whether the resident executor is there. */
export function workerAlive(): boolean {
  return system.current()?.workerAlive() ?? false;
}

/** Ends the running system; nothing happens when none is running. */
export async function shutdown(options?: { readonly drain?: boolean }): Promise<void> {
  await system.current()?.shutdown(options);
}

/** Writes one task into a ring. @throws GPUOS_BAD_DESCRIPTOR, GPUOS_OPERATOR_OUT_OF_RANGE, GPUOS_BAD_DEPENDENCY, GPUOS_QUEUE_FULL */
export function submit(request: TaskRequest): Task {
  return requireSystem().submit(request);
}

/** Compiles a curated template and puts it into the running executor's operator table. @throws GPUOS_BAD_TEMPLATE */
export function inject(template: Template, parameters: TemplateParameters): InjectedOperator {
  return requireSystem().inject(template, parameters);
}

/** Tasks of the operator fail from here on. */
export function kill(operator: number | string | InjectedOperator): Promise<void> {
  return requireSystem().kill(operator);
}

/** A new version of an injected operator, in its slot. Tasks submitted before run the old one. @throws GPUOS_BAD_TEMPLATE */
export function replace(operator: number | InjectedOperator, template: Template, parameters: TemplateParameters): InjectedOperator {
  return requireSystem().replace(operator, template, parameters);
}

/** Takes an injected operator out of the table; its slot is free again once its tasks are complete. */
export function remove(operator: number | InjectedOperator): void {
  requireSystem().remove(operator);
}

/** Undoes kill(). */
export function revive(operator: number | string | InjectedOperator): Promise<void> {
  return requireSystem().revive(operator);
}

/**
 * A tensor of these values (nested arrays are not taken: give the shape). For float16 and bfloat16 they are rounded, and a
 * Uint16Array is taken for the bits. @throws GPUOS_BAD_SHAPE, GPUOS_SHAPE_MISMATCH, GPUOS_DTYPE_MISMATCH
 */
export function tensor(values: ArrayLike<number | boolean>, shape: Shape = [values?.length], dtype: DType = 'float32'): Tensor {
  return engine().fromHost(values, shape, dtype);
}

/** Runs `body`, and disposes of the tensors made in it but those that it returns. */
export function tidy<T>(body: () => T): T {
  return engine().tidy(body);
}
