// Rotary position embedding in place: channel j of a head turns with channel j + pairs by the angle of the token's
// position. Angles come as cosines and sines [positions, pairs], made on the host in double, so that every scaling of
// frequencies (linear, Llama 3, YaRN with its attention factor) is in the table and none in the kernel. Channels from
// 2 * pairs on stay as they are.
//
// Launch: one block of kThreads a token.
#include <cuda_fp16.h>

constexpr int kThreads = 256;

extern "C" __global__ void __launch_bounds__(kThreads)
rope(const int* __restrict__ positions, const float* __restrict__ cosines, const float* __restrict__ sines, int heads,
     int head_dim, int pairs, __half* __restrict__ x) {
  const long long angles = static_cast<long long>(positions[blockIdx.x]) * pairs;
  __half* token = x + static_cast<long long>(blockIdx.x) * heads * head_dim;
  for (int i = threadIdx.x; i < heads * pairs; i += kThreads) {
    const int pair = i % pairs;
    __half* first = token + i / pairs * head_dim + pair;
    __half* second = first + pairs;
    const float cosine = cosines[angles + pair];
    const float sine = sines[angles + pair];
    const float a = __half2float(*first);
    const float b = __half2float(*second);
    *first = __float2half_rn(a * cosine - b * sine);
    *second = __float2half_rn(b * cosine + a * sine);
  }
}
