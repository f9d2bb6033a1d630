#pragma once

#include <cstdint>

// Short loops over floats that several kernels share; compiled for each SIMD target, picked at run time.
namespace vqllm::cpu {

/// out[i] = the value of half bits[i].
void HalvesToFloats(const uint16_t* bits, int64_t n, float* out);
/// out[i] = the bits of values[i] as a half, rounded to nearest even.
void FloatsToHalves(const float* values, int64_t n, uint16_t* out);
/// out[i] = the value of bfloat16 bits[i].
void BFloat16sToFloats(const uint16_t* bits, int64_t n, float* out);

/// scores[j] = sum_c q[c] keys[c][j] for j in [0, n); keys is [channels] rows of `stride` floats.
void KeyScores(const float* q, const float* keys, int64_t channels, int64_t stride, int64_t n, float* scores);
/// out[c] = out[c] * keep + sum_j p[j] values[j][c] for c in [0, channels); values is [n, channels].
void AddWeighted(const float* p, const float* values, int64_t n, int64_t channels, float keep, float* out);
/// p[j] = exp(p[j] - largest); returns the sum. -infinity gives 0.
float ExpSum(float* p, int64_t n, float largest);

/// y = x * factor * weight.
void ScaleByWeight(const float* x, const float* weight, float factor, int64_t n, float* y);
float SumOfSquares(const float* x, int64_t n);
/// y = gate / (1 + exp(-gate)) * up.
void SiluMulRow(const float* gate, const float* up, int64_t n, float* y);
/// x += y.
void AddTo(const float* y, int64_t n, float* x);

}  // namespace vqllm::cpu
