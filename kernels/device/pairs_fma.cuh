#pragma once

__device__ __forceinline__ unsigned FmaPairs(unsigned a, unsigned b, unsigned c) {
  return AsPair(__hfma2(AsHalf2(a), AsHalf2(b), AsHalf2(c)));
}
