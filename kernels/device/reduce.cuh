#pragma once

// Sum over `lanes` neighbouring lanes (a power of two), the same bits in each of them.
__device__ __forceinline__ float SumLanes(float value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}
