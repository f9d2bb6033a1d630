// VQ GeMV: additive 2 x (256 x 8) codebooks in shared memory, a warp for each row, shuffles.
#include <cuda_fp16.h>
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
// W[n,k..k+7] = CB0[c0] + CB1[c1];  codes: uchar2 per 8 weights, row-major [N][K/8]
extern "C" __global__ void __launch_bounds__(256)
    vq_gemv(const uint16_t* __restrict__ codes, const uint4* __restrict__ cb, const __half* __restrict__ x,
            const float* __restrict__ scale, __half* __restrict__ y, int N, int K) {
  extern __shared__ uint4 scb[];  // 512 x 16 B = 8 KiB
  for (int i = threadIdx.x; i < 512; i += blockDim.x) scb[i] = cb[i];
  __syncthreads();
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  int row = blockIdx.x * (blockDim.x >> 5) + warp;
  if (row >= N) return;
  const int nv = K >> 3;
  const uint16_t* cr = codes + (size_t)row * nv;
  float acc = 0.f;
  for (int v = lane; v < nv; v += 32) {
    uint32_t c = cr[v];
    uint4 a = scb[c & 255], b = scb[256 + (c >> 8)];
    uint4 xv = reinterpret_cast<const uint4*>(x)[v];
    const __half2* ah = reinterpret_cast<const __half2*>(&a);
    const __half2* bh = reinterpret_cast<const __half2*>(&b);
    const __half2* xh = reinterpret_cast<const __half2*>(&xv);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float2 w = __half22float2(__hadd2(ah[j], bh[j]));
      float2 xf = __half22float2(xh[j]);
      acc = fmaf(w.x, xf.x, acc);
      acc = fmaf(w.y, xf.y, acc);
    }
  }
#pragma unroll
  for (int o = 16; o; o >>= 1) acc += __shfl_xor_sync(0xffffffffu, acc, o);
  if (lane == 0) y[row] = __float2half_rn(acc * scale[row]);
}
