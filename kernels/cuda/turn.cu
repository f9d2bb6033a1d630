// Activations on both sides of a weight matrix that is stored turned (QuIP#, act-order, VPTQ):
//
//   W = S_out Q_out^T W' Q_in P (S_in and column scales) + column offsets,   y = W x + bias
//
// turn_inputs makes of x what W' is multiplied with; turn_outputs makes of the product what W x is. Two transforms of
// n log n operations a token take the place of a dense matrix.
//
// Q is a Hadamard matrix over sqrt(order): a dense factor [dense, dense] of +1 and -1 (Paley) times Sylvester's of order
// `power`, element i being (i / power, i % power); where dense is 1, n / power Sylvester blocks stand side by side.
//
// Launch: one block of kThreads a token, 4 n bytes of shared memory.
#include <cuda_fp16.h>

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

// Sylvester blocks of `power` values each, over all of row [n]; ends with a barrier.
__device__ __forceinline__ void Butterflies(float* row, int n, int power) {
  __syncthreads();
  for (int step = 1; step < power; step *= 2) {
    for (int pair = threadIdx.x; pair < n / 2; pair += kThreads) {
      const int i = pair / step * 2 * step + pair % step;
      const float a = row[i];
      const float b = row[i + step];
      row[i] = a + b;
      row[i + step] = a - b;
    }
    __syncthreads();
  }
}

// permutation [n] (null: none): stored column j is column permutation[j]. factors [n] (null: 1) multiply x; the sum of
// offsets[c] * x[c] goes to offset_sums[token] (both null: none). `norm` is 1 / sqrt(order).
extern "C" __global__ void __launch_bounds__(kThreads)
turn_inputs(const __half* __restrict__ x, const int* __restrict__ permutation, const float* __restrict__ factors,
            const float* __restrict__ offsets, const signed char* __restrict__ matrix, int n, int dense, int power,
            float norm, __half* __restrict__ y, float* __restrict__ offset_sums) {
  extern __shared__ __align__(16) float row[];
  __shared__ float warp_sums[kWarps];
  const long long token = static_cast<long long>(blockIdx.x) * n;

  // 1. The dense factor, straight from global memory: its operands would need a second row of shared memory.
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const int k = dense == 1 ? i : i % power;
    const signed char* signs = matrix + (dense == 1 ? 0 : i / power * dense);
    float sum = 0;
    for (int j = 0; j < dense; ++j) {
      const int stored = j * power + k;
      const int column = permutation == nullptr ? stored : permutation[stored];
      const float factor = factors == nullptr ? 1.0f : factors[column];
      sum = fmaf(signs[j] * factor, __half2float(x[token + column]), sum);
    }
    row[i] = sum;
  }

  // 2. Sylvester's factor.
  Butterflies(row, n, power);
  for (int i = threadIdx.x; i < n; i += kThreads) {
    y[token + i] = __float2half_rn(row[i] * norm);
  }

  // 3. What the column offsets add to every output.
  if (offsets == nullptr) return;
  float sum = 0;
  for (int c = threadIdx.x; c < n; c += kThreads) {
    sum = fmaf(offsets[c], __half2float(x[token + c]), sum);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  if (threadIdx.x % 32 == 0) {
    warp_sums[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (int warp = 0; warp < kWarps; ++warp) {
      total += warp_sums[warp];
    }
    offset_sums[blockIdx.x] = total;
  }
}

// y [tokens, n] in place. matrix is the transposed dense factor; signs [n], offset_sums [tokens] and bias [n] may each
// be null.
extern "C" __global__ void __launch_bounds__(kThreads)
turn_outputs(const signed char* __restrict__ matrix, int n, int dense, int power, float norm,
             const float* __restrict__ signs, const float* __restrict__ offset_sums, const float* __restrict__ bias,
             __half* y) {
  extern __shared__ __align__(16) float row[];
  __half* token = y + static_cast<long long>(blockIdx.x) * n;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const int k = dense == 1 ? i : i % power;
    const signed char* from = matrix + (dense == 1 ? 0 : i / power * dense);
    float sum = 0;
    for (int j = 0; j < dense; ++j) {
      sum = fmaf(static_cast<float>(from[j]), __half2float(token[j * power + k]), sum);
    }
    row[i] = sum;
  }
  Butterflies(row, n, power);
  const float offset = offset_sums == nullptr ? 0.0f : offset_sums[blockIdx.x];
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const float turned = row[i] * norm * (signs == nullptr ? 1.0f : signs[i]);
    token[i] = __float2half_rn(turned + offset + (bias == nullptr ? 0.0f : bias[i]));
  }
}
