#pragma once

// Two fp16 values as two bf16 values, rounded to nearest even: the mma wants one type on both sides.
__device__ __forceinline__ unsigned ToBfloat16(unsigned pair) {
  const __nv_bfloat162 rounded = __float22bfloat162_rn(__half22float2(AsHalf2(pair)));
  return *reinterpret_cast<const unsigned*>(&rounded);
}
