// K4: int4 GPTQ-style GeMV, lop3 dequant (0x6400 trick), half2 math, group scale 128, block reduce through
// smem
#include <cuda_fp16.h>
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
template <int lut>
__device__ __forceinline__ uint32_t lop3(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm volatile("lop3.b32 %0, %1, %2, %3, %4;\n" : "=r"(r) : "r"(a), "r"(b), "r"(c), "n"(lut));
  return r;
}
__device__ __forceinline__ uint32_t pk(uint32_t a, uint32_t b, uint32_t s) { return __byte_perm(a, b, s); }
// qw: [N][K/8] (8 nibbles, interleaved as e0 e2 e4 e6 | e1 e3 e5 e7 pairs), sc: [N][K/128] half
extern "C" __global__ void __launch_bounds__(128)
    gptq_gemv(const uint4* __restrict__ qw, const __half* __restrict__ sc, const __half* __restrict__ x,
              __half* __restrict__ y, int N, int K) {
  __shared__ float red[4];
  const int row = blockIdx.x, tid = threadIdx.x;
  const uint4* wr = qw + (size_t)row * (K / 32);
  float acc = 0.f;
  for (int v = tid; v < K / 32; v += 128) {  // 32 weights per 16 B
    uint4 w4 = wr[v];
    uint32_t w[4] = {w4.x, w4.y, w4.z, w4.w};
    const uint4* xp = reinterpret_cast<const uint4*>(x) + v * 4;
    __half2 a2 = __float2half2_rn(0.f);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint4 xv = xp[i];
      const __half2* xh = (const __half2*)&xv;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        uint32_t q = w[i] >> (4 * j);
        uint32_t h = lop3<(0xf0 & 0xcc) | 0xaa>(q, 0x000f000f, 0x64006400);
        __half2 wv = __hsub2(*(__half2*)&h, __half2half2(__ushort_as_half(0x6408)));
        a2 = __hfma2(wv, xh[j], a2);
      }
    }
    float2 f = __half22float2(a2);
    acc = fmaf(__half2float(sc[(size_t)row * (K / 128) + v / 4]), f.x + f.y, acc);
  }
#pragma unroll
  for (int o = 16; o; o >>= 1) acc += __shfl_down_sync(0xffffffffu, acc, o);
  if ((tid & 31) == 0) red[tid >> 5] = acc;
  __syncthreads();
  if (tid == 0) y[row] = __float2half_rn((red[0] + red[1]) + (red[2] + red[3]));
}
