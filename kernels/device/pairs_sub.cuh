#pragma once

__device__ __forceinline__ unsigned SubPairs(unsigned a, unsigned b) {
  return AsPair(__hsub2(AsHalf2(a), AsHalf2(b)));
}
