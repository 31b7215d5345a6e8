// Code of an injected operator where device memory is memory of the process. It runs wherever it is copied to, as real
// code of an operator does, and to those who check that it is what it should look as before.
#pragma once
#include <stdint.h>
#include <string.h>

namespace emulation {

// Where each process has the address of `emulation_resolve`.
constexpr uint64_t RESOLVER = 0x5a5a00000000;
constexpr size_t JUMP_BYTES = 19;

// mov r10d, number; mov r11, RESOLVER; jmp [r11]. The number is that of the operator's shared object. In this order its
// first word is no control instruction of a device.
inline void write_jump(char *code, uint32_t number) {
  memcpy(code, "\x41\xba", 2);
  memcpy(code + 2, &number, sizeof number);
  memcpy(code + 6, "\x49\xbb", 2);
  memcpy(code + 8, &RESOLVER, sizeof RESOLVER);
  memcpy(code + 16, "\x41\xff\x23", 3);
}

// Whether there is such a jump in a cubin, and the number in it.
inline bool read_jump(const char *cubin, size_t size, uint32_t &number) {
  char begin[JUMP_BYTES];
  write_jump(begin, 0);
  for (size_t at = 0; at + JUMP_BYTES <= size; at++) {
    if (memcmp(cubin + at, begin, 2) != 0 || memcmp(cubin + at + 6, begin + 6, JUMP_BYTES - 6) != 0) continue;
    memcpy(&number, cubin + at + 2, sizeof number);
    return true;
  }
  return false;
}

}  // namespace emulation
