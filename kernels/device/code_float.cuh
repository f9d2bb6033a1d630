#pragma once

// Byte `index` of a word as fp32: 2^23 + byte has the byte in its low bits.
__device__ __forceinline__ float CodeFloat(unsigned word, int index) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + index)) - 8388608.0f;
}
