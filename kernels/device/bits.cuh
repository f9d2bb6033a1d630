#pragma once

// `width` bits from bit `at` of a lane's words, none of which crosses a word. `at` is known once loops are unrolled.
__device__ __forceinline__ unsigned Bits(const unsigned* words, int at, int width) {
  return words[at / 32] >> (at % 32) & ((1u << width) - 1);
}
