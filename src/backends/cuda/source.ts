import { readdirSync, readFileSync } from 'node:fs';
import { cudaHeader } from '../../abi/headers.ts';

/** What our sources use of two headers of C that NVRTC does not have. */
const STDINT = `#pragma once
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t; typedef unsigned long long uint64_t;
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;`;
const STDDEF = '#pragma once';

const FOLDER = new URL('device/', import.meta.url);
const read = (name: string): string => readFileSync(new URL(name, FOLDER), 'utf8');

/** What every source of ours may include: the layouts of the abi, and the types that they are written in. */
export function operatorHeaders(): Readonly<Record<string, string>> {
  return { 'gpuos_abi.h': cudaHeader(), 'stdint.h': STDINT, 'stddef.h': STDDEF };
}

/** The source of the resident kernel and all that it includes, for NVRTC: one file a role, and the operators' folder. */
export function residentSource(): { readonly source: string; readonly headers: Readonly<Record<string, string>> } {
  const headers: Record<string, string> = { ...operatorHeaders() };
  for (const folder of ['', 'operators/']) {
    for (const name of readdirSync(new URL(folder, FOLDER))) if (name.endsWith('.cuh')) headers[folder + name] = read(folder + name);
  }
  return { source: read('resident.cu'), headers };
}

/** How an operator that is injected is compiled: for calls from code that is there before it, within what that leaves to it. */
export const OPERATOR_OPTIONS: readonly string[] = ['--relocatable-device-code=true', '--maxrregcount=128', '--std=c++17'];

/** How the resident kernel is compiled: functions that can be called from code that comes later, with registers to spare for that. */
export const RESIDENT_OPTIONS: readonly string[] = OPERATOR_OPTIONS;
