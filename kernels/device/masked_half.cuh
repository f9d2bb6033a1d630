#pragma once

// (word & mask) | 0x64006400 in one lop3: small integers in the low bits of two fp16 values that read 1024 + integer.
__device__ __forceinline__ unsigned MaskedHalf(unsigned word, unsigned mask) {
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(0x64006400u));
  return result;
}
