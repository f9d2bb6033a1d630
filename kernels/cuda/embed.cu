// x[t] = table[ids[t]] as fp32 for every token t.
//
// Launch: one block of kThreads a token.
#include <cuda_fp16.h>

constexpr int kThreads = 256;

extern "C" __global__ void __launch_bounds__(kThreads)
embed(const __half* __restrict__ table, const int* __restrict__ ids, int columns, float* __restrict__ x) {
  const __half* entry = table + static_cast<long long>(ids[blockIdx.x]) * columns;
  float* row = x + static_cast<long long>(blockIdx.x) * columns;
  for (int c = threadIdx.x; c < columns; c += kThreads) {
    row[c] = __half2float(entry[c]);
  }
}
