// y = gate / (1 + exp(-gate)) * up over `count` values; y may be gate or up.
//
// A thread takes two values, so that a warp reads 128 bytes of each operand at once.
// Launch: ceil(count / (2 * kThreads)) blocks of kThreads.
#include <cuda_fp16.h>

constexpr int kThreads = 256;

__device__ __forceinline__ float SiluMul(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

extern "C" __global__ void __launch_bounds__(kThreads)
silu_mul(const __half* gate, const __half* up, int count, __half* y) {
  const int i = 2 * (blockIdx.x * kThreads + threadIdx.x);
  if (i + 1 < count) {
    const float2 g = __half22float2(*reinterpret_cast<const __half2*>(gate + i));
    const float2 u = __half22float2(*reinterpret_cast<const __half2*>(up + i));
    *reinterpret_cast<__half2*>(y + i) = __floats2half2_rn(SiluMul(g.x, u.x), SiluMul(g.y, u.y));
  } else if (i < count) {
    y[i] = __float2half_rn(SiluMul(__half2float(gate[i]), __half2float(up[i])));
  }
}
