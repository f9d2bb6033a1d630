#pragma once

__device__ __forceinline__ unsigned MulPairs(unsigned a, unsigned b) {
  return AsPair(__hmul2(AsHalf2(a), AsHalf2(b)));
}
