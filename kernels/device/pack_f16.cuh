#pragma once

// Two floats as fp16 in one register, the first in the low half.
__device__ __forceinline__ unsigned PackHalves(float low, float high) {
  return __half_as_ushort(__float2half_rn(low)) |
         static_cast<unsigned>(__half_as_ushort(__float2half_rn(high))) << 16;
}
