#pragma once

// `width` bits from bit `at` of a lane's words; they may cross into the next word. `at` is known once loops are
// unrolled, so the branch is decided by the compiler.
__device__ __forceinline__ unsigned Bits(const unsigned* words, int at, int width) {
  const int shift = at % 32;
  unsigned value = words[at / 32] >> shift;
  if (shift + width > 32) value = __funnelshift_r(words[at / 32], words[at / 32 + 1], shift);
  return value & ((1u << width) - 1);
}
