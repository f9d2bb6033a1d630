// y[t] = x[t] * weight / sqrt(mean(x[t]^2) + epsilon) for every token t.
//
// x is the running sum of all layers and stays fp32; y is an operand of products and fp16.
// Launch: one block of kThreads a token.
#include <cuda_fp16.h>

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

extern "C" __global__ void __launch_bounds__(kThreads)
rms_norm(const float* __restrict__ x, const float* __restrict__ weight, float epsilon, int columns,
         __half* __restrict__ y) {
  __shared__ float warp_sums[kWarps];
  const float* row = x + static_cast<long long>(blockIdx.x) * columns;

  // 1. Each thread sums the squares of its columns, each warp those of its lanes.
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += kThreads) {
    sum = fmaf(row[c], row[c], sum);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  if (threadIdx.x % 32 == 0) {
    warp_sums[threadIdx.x / 32] = sum;
  }
  __syncthreads();

  // 2. Every thread adds the warps' sums in the same order, which needs no second barrier.
  float total = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    total += warp_sums[warp];
  }
  const float factor = 1.0f / sqrtf(total / columns + epsilon);
  for (int c = threadIdx.x; c < columns; c += kThreads) {
    y[static_cast<long long>(blockIdx.x) * columns + c] = __float2half_rn(row[c] * factor * weight[c]);
  }
}
