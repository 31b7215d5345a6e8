import { readFileSync } from 'node:fs';
import { cudaHeader } from '../../abi/headers.ts';

/** One file a role; `resident.cu` includes the others. */
const FILES = ['resident.cuh', 'dispatcher.cuh', 'worker.cuh', 'operators.cuh'] as const;

/** What our sources use of two headers of C that NVRTC does not have. */
const STDINT = `#pragma once
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t; typedef unsigned long long uint64_t;
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;`;
const STDDEF = '#pragma once';

const read = (name: string): string => readFileSync(new URL(`device/${name}`, import.meta.url), 'utf8');

/** The source of the resident kernel and all that it includes, for NVRTC. */
export function residentSource(): { readonly source: string; readonly headers: Readonly<Record<string, string>> } {
  const headers: Record<string, string> = { 'gpuos_abi.h': cudaHeader(), 'stdint.h': STDINT, 'stddef.h': STDDEF };
  for (const name of FILES) headers[name] = read(name);
  return { source: read('resident.cu'), headers };
}

/** How it is compiled: functions that can be called from code that comes later, with registers to spare for that. */
export const RESIDENT_OPTIONS: readonly string[] = ['--relocatable-device-code=true', '--maxrregcount=128', '--std=c++17'];
