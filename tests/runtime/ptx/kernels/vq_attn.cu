// K3: decode attention with VQ KV cache, online softmax.  D = 128 = 16 groups x 8 dims.
// codesK/codesV: uint8 [H][T][16]; codebooks per head: [H][256] x 8 halves (shared by the 16 groups)
// one block per head, 4 warps; each warp: 2 tokens at once (16 lanes per token, lane = group)
#include <cuda_fp16.h>
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
#define kMinusInfinity __int_as_float(0xff800000)
extern "C" __global__ void __launch_bounds__(128)
    vq_attn(const __half* __restrict__ q, const uint8_t* __restrict__ ck, const uint8_t* __restrict__ cv,
            const uint4* __restrict__ cbk, const uint4* __restrict__ cbv, float* __restrict__ out, int T,
            float sm_scale) {
  __shared__ uint4 sk[256], sv[256];
  __shared__ float sm_m[8], sm_l[8], sm_o[8][128];
  const int h = blockIdx.x, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, half = lane >> 4,
            g = lane & 15;
  for (int i = tid; i < 256; i += 128) {
    sk[i] = cbk[h * 256 + i];
    sv[i] = cbv[h * 256 + i];
  }
  __syncthreads();
  float qf[8];
  {
    uint4 qv = reinterpret_cast<const uint4*>(q + h * 128)[g];
    const __half2* p = (const __half2*)&qv;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float2 f = __half22float2(p[j]);
      qf[2 * j] = f.x * sm_scale;
      qf[2 * j + 1] = f.y * sm_scale;
    }
  }
  float m = kMinusInfinity, l = 0.f, o[8] = {};
  const uint8_t* pk = ck + (size_t)h * T * 16;
  const uint8_t* pv = cv + (size_t)h * T * 16;
  for (int t0 = warp * 2; t0 < T; t0 += 8) {
    int t = t0 + half;
    bool ok = t < T;
    uint32_t ik = ok ? pk[(size_t)t * 16 + g] : 0, iv = ok ? pv[(size_t)t * 16 + g] : 0;
    uint4 kv = sk[ik];
    const __half2* kp = (const __half2*)&kv;
    float s = 0.f;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float2 f = __half22float2(kp[j]);
      s = fmaf(qf[2 * j], f.x, s);
      s = fmaf(qf[2 * j + 1], f.y, s);
    }
#pragma unroll
    for (int k = 8; k; k >>= 1) s += __shfl_xor_sync(0xffffffffu, s, k);
    if (!ok) s = kMinusInfinity;
    float mn = fmaxf(m, s);
    float c = (m == kMinusInfinity) ? 0.f : exp2f((m - mn) * 1.4426950408889634f);
    float p = ok ? exp2f((s - mn) * 1.4426950408889634f) : 0.f;
    l = fmaf(l, c, p);
    m = mn;
    uint4 vv = sv[iv];
    const __half2* vp = (const __half2*)&vv;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float2 f = __half22float2(vp[j]);
      o[2 * j] = fmaf(o[2 * j], c, p * f.x);
      o[2 * j + 1] = fmaf(o[2 * j + 1], c, p * f.y);
    }
  }
  int slot = warp * 2 + half;
  if (g == 0) {
    sm_m[slot] = m;
    sm_l[slot] = l;
  }
#pragma unroll
  for (int j = 0; j < 8; j++) sm_o[slot][g * 8 + j] = o[j];
  __syncthreads();
  float M = kMinusInfinity;
#pragma unroll
  for (int i = 0; i < 8; i++) M = fmaxf(M, sm_m[i]);
  float L = 0.f, a = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    float c = (sm_m[i] == kMinusInfinity) ? 0.f : exp2f((sm_m[i] - M) * 1.4426950408889634f);
    L = fmaf(sm_l[i], c, L);
    a = fmaf(sm_o[i][tid], c, a);
  }
  out[h * 128 + tid] = a / L;
}
