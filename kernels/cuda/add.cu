// x += y over `count` values: the output of a block of layers joins the running sum.
//
// The sum is fp32: in fp16 a small update of a large channel would be lost. A thread takes two values, so that a warp
// reads 128 bytes of y and 256 of x at once.
// Launch: ceil(count / (2 * kThreads)) blocks of kThreads.
#include <cuda_fp16.h>

constexpr int kThreads = 256;

extern "C" __global__ void __launch_bounds__(kThreads)
add(const __half* __restrict__ y, int count, float* __restrict__ x) {
  const int i = 2 * (blockIdx.x * kThreads + threadIdx.x);
  if (i + 1 < count) {
    const float2 update = __half22float2(*reinterpret_cast<const __half2*>(y + i));
    float2* sum = reinterpret_cast<float2*>(x + i);
    *sum = make_float2(sum->x + update.x, sum->y + update.y);
  } else if (i < count) {
    x[i] += __half2float(y[i]);
  }
}
