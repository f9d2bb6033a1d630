// K2: VQ GEMM  C[M,N] = A[M,K] * W[N,K]^T ; BM=16, BN=64, BK=64, 128 threads (4 warps, each 16x16)
// A tile through cp.async (double buffered), W tile dequantised from smem codebook into smem, ldmatrix +
// mma.m16n8k16
#include <cuda_fp16.h>
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
#define BM 16
#define BN 64
#define BK 64
#define LDS_ (BK + 8)
__device__ __forceinline__ uint32_t s2u(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void cpasync16(uint32_t d, const void* s, bool p) {
  int n = p ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(d), "l"(s), "r"(n));
}
__device__ __forceinline__ void ldm4(uint32_t (&r)[4], uint32_t a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a));
}
__device__ __forceinline__ void mma16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
extern "C" __global__ void __launch_bounds__(128)
    vq_gemm(const __half* __restrict__ A, const uint16_t* __restrict__ codes, const uint4* __restrict__ cb,
            __half* __restrict__ C, int M, int N, int K) {
  __shared__ __align__(16) uint4 scb[512];
  __shared__ __align__(16) __half sA[2][BM * LDS_];
  __shared__ __align__(16) __half sB[2][BN * LDS_];
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
  const int n0 = blockIdx.x * BN, m0 = blockIdx.y * BM, nv = K >> 3;
  for (int i = tid; i < 512; i += 128) scb[i] = cb[i];
  float acc[2][4] = {};
  const int nk = K / BK;
  auto loadA = [&](int kt, int s) {  // 16 x 64 halves = 128 x 16B : one per thread
    int r = tid >> 3, c = (tid & 7) * 8;
    bool p = (m0 + r) < M;
    cpasync16(s2u(&sA[s][r * LDS_ + c]), A + (size_t)(p ? m0 + r : 0) * K + kt * BK + c, p);
    asm volatile("cp.async.commit_group;\n");
  };
  auto deqB = [&](int kt, int s) {  // 64 rows x 8 vectors = 512 vectors, 4 per thread
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int e = tid + i * 128, r = e >> 3, v = e & 7;
      uint32_t c = codes[(size_t)(n0 + r) * nv + kt * (BK / 8) + v];
      uint4 a = scb[c & 255], b = scb[256 + (c >> 8)];
      uint4 o;
      __half2 *ah = (__half2*)&a, *bh = (__half2*)&b, *oh = (__half2*)&o;
#pragma unroll
      for (int j = 0; j < 4; j++) oh[j] = __hadd2(ah[j], bh[j]);
      *reinterpret_cast<uint4*>(&sB[s][r * LDS_ + v * 8]) = o;
    }
  };
  loadA(0, 0);
  __syncthreads();
  deqB(0, 0);
  for (int kt = 0; kt < nk; kt++) {
    int s = kt & 1;
    if (kt + 1 < nk) {
      loadA(kt + 1, s ^ 1);
      asm volatile("cp.async.wait_group 1;\n");
    } else
      asm volatile("cp.async.wait_group 0;\n");
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < BK / 16; kk++) {
      uint32_t a[4], b[4];
      ldm4(a, s2u(&sA[s][(lane & 15) * LDS_ + kk * 16 + (lane >> 4) * 8]));
      ldm4(b, s2u(&sB[s][(warp * 16 + (lane & 7) + ((lane >> 4) << 3)) * LDS_ + kk * 16 +
                         ((lane >> 3) & 1) * 8]));
      mma16816(acc[0], a, b[0], b[1]);
      mma16816(acc[1], a, b[2], b[3]);
    }
    if (kt + 1 < nk) deqB(kt + 1, s ^ 1);
    __syncthreads();
  }
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int j = 0; j < 2; j++) {
    int col = n0 + warp * 16 + j * 8 + t * 2;
    if (m0 + g < M)
      *reinterpret_cast<__half2*>(&C[(size_t)(m0 + g) * N + col]) = __floats2half2_rn(acc[j][0], acc[j][1]);
    if (m0 + g + 8 < M)
      *reinterpret_cast<__half2*>(&C[(size_t)(m0 + g + 8) * N + col]) =
          __floats2half2_rn(acc[j][2], acc[j][3]);
  }
}
