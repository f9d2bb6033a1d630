#pragma once

__device__ __forceinline__ unsigned AddPairs(unsigned a, unsigned b) {
  return AsPair(__hadd2(AsHalf2(a), AsHalf2(b)));
}
