#pragma once

// Two floats as bf16 in one register, the first in the low half.
__device__ __forceinline__ unsigned PackBfloat16(float low, float high) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(low)) |
         static_cast<unsigned>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
}
