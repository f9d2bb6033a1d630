// fp8 by its header, and reading the clock.
#include <cuda_fp8.h>
extern "C" __global__ void fp8(const float* in, unsigned char* codes, float* out, __half2* halves, int n) {
  const int i = threadIdx.x;
  if (i >= n) return;
  const float x = in[i];
  const __nv_fp8_e4m3 a(x);
  const __nv_fp8_e5m2 b(x);
  codes[2 * i] = a.__x;
  codes[2 * i + 1] = b.__x;
  out[2 * i] = float(a);
  out[2 * i + 1] = float(b);
  const __nv_fp8x2_e4m3 pair(make_float2(x, -x));
  halves[i] = __half2(pair);
}
extern "C" __global__ void clocks(long long* out) {
  const long long start = clock64();
  const unsigned low = clock();
  float x = threadIdx.x;
#pragma unroll 1
  for (int i = 0; i < 100; ++i) x = x * 1.5f + 1.0f;
  const long long stop = clock64();
  if (threadIdx.x == 0) {
    out[0] = start;
    out[1] = stop;
    out[2] = low;
    out[3] = x > 0;
  }
}
