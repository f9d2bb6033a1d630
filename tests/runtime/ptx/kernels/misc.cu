// What CUDA's headers turn into: halves and bfloat16, libm, integer intrinsics, atomics and barriers that
// vote, cooperative groups, wmma, calls, local arrays, switches, constants.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>

namespace cg = cooperative_groups;

extern "C" __global__ void halves(const __half2* a, const __nv_bfloat162* b, __half2* o, __nv_bfloat162* p,
                                  float* f, int n) {
  const __half2 x = a[0], y = a[1];
  const __nv_bfloat162 u = b[0], v = b[1];
  o[0] = __hfma2_relu(x, y, x);
  o[1] = h2exp2(x);
  o[2] = __hmax2(x, y);
  o[3] = h2rcp(y);
  o[4] = __hneg2(x);
  o[5] = __habs2(y);
  o[6] = h2tanh(x);
  o[7] = __h2div(x, y);
  p[0] = __hfma2(u, v, u);
  p[1] = __hmul2(u, v);
  p[2] = __hadd2(u, v);
  p[3] = __hmax2(u, v);
  p[4] = __hsub2(u, v);
  f[0] = __half2float(__low2half(x)) + (__hgt(__low2half(x), __high2half(y)) ? 100.f : 0.f);
  f[1] = __bfloat162float(u.x) + (__heq(u.x, v.y) ? 100.f : 0.f) + (__hbeq2(x, y) ? 1000.f : 0.f);
  f[2] = __half2float(__int2half_rn(n)) + (float)__half2int_rz(x.x);
  f[3] = __half2float(hrsqrt(y.y));
}

extern "C" __global__ void math(const float* in, float* f, double* d, int* q, unsigned long long* l, int n) {
  const float x = in[0];
  f[0] = expf(x);
  f[1] = __expf(x);
  f[2] = logf(x);
  f[3] = tanhf(x);
  f[4] = rsqrtf(x);
  f[5] = sqrtf(x);
  f[6] = __fdividef(x, 3.f);
  f[7] = sinf(x);
  f[8] = fmodf(x, 0.3f);
  f[9] = roundf(x);
  f[10] = rintf(x);
  f[11] = __saturatef(x);
  f[12] = copysignf(x, in[1]);
  f[13] = ldexpf(x, n);
  f[14] = powf(x, 1.5f);
  q[0] = __clz(n);
  q[1] = __ffs(n);
  q[2] = __brev(n);
  q[3] = __mul24(n, -3);
  q[4] = __dp4a(n, 0x01020304, 3);
  q[5] = __funnelshift_r(n, 7, 5);
  q[6] = __sad(n, -9, 2);
  q[7] = n / 7;
  q[8] = n % 7;
  q[9] = __float2int_rd(x);
  q[10] = __vadd2(n, 0x00010001);
  q[11] = __vcmpeq4(n, 0x2a);
  q[12] = __byte_perm(n, 0x11223344, 0x5140);
  l[1] = l[0] * 3;
  l[2] = __umul64hi(l[0], l[0]);
  l[3] = l[0] / 1000003;
  l[4] = __popcll(l[0]);
  d[1] = d[0] * 2.0 + x;
}

extern "C" __global__ void atomics(int* q, unsigned long long* l, float* f, double* d, __half2* h,
                                   __nv_bfloat162* b, int* votes) {
  __shared__ int counts[8];
  const int i = threadIdx.x;
  if (i < 8) counts[i] = 0;
  __syncthreads();
  atomicAdd(&counts[i & 7], 1);
  atomicMax(&q[0], i);
  atomicCAS(&q[1], 0, i + 1);
  atomicAnd(&q[2], ~(1 << (i & 31)));
  atomicInc((unsigned*)&q[3], 6);
  atomicAdd(l, 1ull);
  atomicAdd(f, 0.5f);
  atomicAdd(d, 0.25);
  atomicAdd(h, __floats2half2_rn(1.f, 2.f));
  atomicAdd(b, __floats2bfloat162_rn(1.f, 2.f));
  __threadfence();
  const int any = __syncthreads_or(i == 3);
  const int count = __syncthreads_count(i % 3 == 0);
  const int all = __syncthreads_and(i < 64);
  votes[i] = counts[i & 7] * 1000 + (any ? 100 : 0) + (all ? 200 : 0) + count;
}

extern "C" __global__ void groups(int* q, float* f) {
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  auto tile = cg::tiled_partition<8>(warp);
  const int i = threadIdx.x;
  const int sum = cg::reduce(warp, i, cg::plus<int>());
  f[i] = cg::reduce(tile, (float)(i * i % 13), cg::greater<float>());
  int same;
  const int matched = __match_all_sync(~0u, i >> 5, &same) != 0 ? same : 0;
  int first = 0;
  if (i & 1) {
    auto odd = cg::coalesced_threads();
    first = odd.shfl(i, 0);
  }
  const unsigned long long wide = __shfl_xor_sync(~0u, 1ull << (i & 31) | 1ull << 40, 3);
  q[i * 4] = sum;
  q[i * 4 + 1] = matched + 10 * __popc(__match_any_sync(~0u, i & 7));
  q[i * 4 + 2] = first;
  q[i * 4 + 3] = (int)(wide >> 9);
}

extern "C" __global__ void fragments(const __half* a, float* c, __half* copy) {
  using namespace nvcuda;
  __shared__ __align__(16) __half s[256];
  __pipeline_memcpy_async(s + threadIdx.x * 8, a + threadIdx.x * 8, 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.5f);
  wmma::load_matrix_sync(fa, s, 16);
  wmma::load_matrix_sync(fb, s, 16);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
  __stcs(copy + threadIdx.x, __ldcs(a + threadIdx.x));
}

__device__ __noinline__ float scaled(float x, int n) { return n > 0 ? x * n : -x; }
__constant__ float table[16] = {1, 2, 3};
__device__ int bias = 5;

extern "C" __global__ void control(const float* in, const int* which, float* out, int n) {
  const int i = threadIdx.x;
  float local[16];
  for (int k = 0; k < 16; ++k) local[k] = in[k];
  local[which[i] & 15] = 3.f;
  float value = scaled(local[(which[i] + 1) & 15], n) + table[i & 3] + bias;
  switch (which[i]) {
    case 0:
      value += 1;
      break;
    case 1:
      value *= 2;
      break;
    case 2:
      value -= 3;
      break;
    case 3:
      value = sqrtf(value);
      break;
    case 4:
      value = 1 / value;
      break;
    case 5:
      value += in[2];
      break;
    case 6:
      value = -value;
      break;
  }
  if (n < 0) __trap();
  out[i] = value;
}
