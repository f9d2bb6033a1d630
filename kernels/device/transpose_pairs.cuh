#pragma once

// The 4 x 4 transpose of four pairs of each of four neighbouring lanes: lane q of four gets pair q of lane i as its
// pair i. Two rounds of exchanges with a lane 1 and 2 away (VQ-LLM, section VI-B, in mini-warps of four lanes).
__device__ __forceinline__ void TransposePairs(unsigned (&pairs)[4]) {
  #pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = (threadIdx.x & distance) != 0;
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int low = distance == 1 ? 2 * i : i;
      const unsigned got = __shfl_xor_sync(0xffffffffu, upper ? pairs[low] : pairs[low + distance], distance);
      if (upper) {
        pairs[low] = got;
      } else {
        pairs[low + distance] = got;
      }
    }
  }
}
