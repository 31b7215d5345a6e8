// Code of an injected operator where device memory is memory of the process. It runs wherever it is copied to, as real
// code of an operator does, and to those who check that it is what it should look as before.
#pragma once
#include <stdint.h>
#include <string.h>

namespace emulation {

// Where each process has the address of `emulation_resolve`.
constexpr uint64_t RESOLVER = 0x5a5a00000000;
constexpr size_t JUMP_BYTES = 19;

// mov r11, RESOLVER; mov r10d, number; jmp [r11]. The number is that of the operator's shared object.
inline void write_jump(char *code, uint32_t number) {
  memcpy(code, "\x49\xbb", 2);
  memcpy(code + 2, &RESOLVER, sizeof RESOLVER);
  memcpy(code + 10, "\x41\xba", 2);
  memcpy(code + 12, &number, sizeof number);
  memcpy(code + 16, "\x41\xff\x23", 3);
}

}  // namespace emulation
