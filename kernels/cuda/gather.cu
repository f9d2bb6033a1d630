// y[i] = x[picked[i]]: the tokens whose logits are wanted.
//
// Launch: one block of kThreads a picked token.

constexpr int kThreads = 256;

extern "C" __global__ void __launch_bounds__(kThreads)
gather(const float* __restrict__ x, const int* __restrict__ picked, int columns, float* __restrict__ y) {
  const float* from = x + static_cast<long long>(picked[blockIdx.x]) * columns;
  float* to = y + static_cast<long long>(blockIdx.x) * columns;
  for (int c = threadIdx.x; c < columns; c += kThreads) {
    to[c] = from[c];
  }
}
