#pragma once

// A code of at most 16 bits whose first bit lies `bit` places above the first bit of a word, as far as the word
// holds it.
__device__ __forceinline__ unsigned ShiftedInto(unsigned code, int bit) {
  if (bit <= -32 || bit >= 32) return 0;
  return bit >= 0 ? code << bit : code >> -bit;
}
