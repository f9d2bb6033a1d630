#pragma once

// Both bf16 values of a register as fp32: bf16 is the upper half of an fp32.
__device__ __forceinline__ float2 Bfloat16Floats(unsigned pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
