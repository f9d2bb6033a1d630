// K6: register-resident codebook: 32..64 entries spread over the lanes' registers, lookup by shfl; bf16
// variant + redux/vote/match
#include <cuda_bf16.h>
#include <cuda_fp16.h>
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
extern "C" __global__ void __launch_bounds__(128)
    reg_cb(const uint32_t* __restrict__ codes, const __nv_bfloat162* __restrict__ cb /*64 entries x 2*/,
           const __nv_bfloat16* __restrict__ x, __nv_bfloat16* __restrict__ y, uint32_t* __restrict__ stats,
           int N, int K) {
  const int lane = threadIdx.x & 31, row = blockIdx.x * 4 + (threadIdx.x >> 5);
  if (row >= N) return;
  uint32_t r0 = reinterpret_cast<const uint32_t*>(cb)[lane],
           r1 = reinterpret_cast<const uint32_t*>(cb)[32 + lane];
  float acc = 0.f;
  uint32_t mx = 0;
  const int nw = K / 10;  // 5 x 6-bit codes (2 weights each) per 32-bit word
  for (int v = lane; v < ((nw + 31) & ~31); v += 32) {
    uint32_t c = v < nw ? codes[(size_t)row * nw + v] : 0;
#pragma unroll
    for (int j = 0; j < 5; j++) {
      uint32_t id = (c >> (6 * j)) & 63;
      uint32_t a = __shfl_sync(0xffffffffu, r0, id & 31), b = __shfl_sync(0xffffffffu, r1, id & 31);
      uint32_t w = id & 32 ? b : a;
      __nv_bfloat162 wv = *reinterpret_cast<__nv_bfloat162*>(&w);
      float2 f = __bfloat1622float2(wv);
      float x0 = v < nw ? __bfloat162float(x[v * 10 + 2 * j]) : 0.f,
            x1 = v < nw ? __bfloat162float(x[v * 10 + 2 * j + 1]) : 0.f;
      acc = fmaf(f.x, x0, acc);
      acc = fmaf(f.y, x1, acc);
      mx = max(mx, id);
    }
  }
#pragma unroll
  for (int o = 16; o; o >>= 1) acc += __shfl_xor_sync(0xffffffffu, acc, o);
  uint32_t m = __reduce_max_sync(0xffffffffu, mx);
  uint32_t b = __ballot_sync(0xffffffffu, mx == m);
  if (lane == 0) {
    y[row] = __float2bfloat16(acc);
    stats[row] = __popc(b) | (m << 8);
  }
}
