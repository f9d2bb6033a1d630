#pragma once

#include <limits>
#include <span>
#include <vector>

#include "kernels/cpu/kv_layer.h"
#include "vq/base/view.h"
#include "vq/tensor.h"

// The oracles: scalar, obvious, sums in double. Every kernel, on a CPU or emitted for a GPU, is compared with
// these.
namespace vqllm::reference {

/// y [m, rows] = x [m, cols] W^T + bias, with W from Dequantize.
void MatMul(MatrixView<const float> x, const Tensor& weights, std::span<const float> bias,
            MatrixView<float> y);

/// For each y[i, r] the sum of |x w| over its products: an error bound is a small multiple of epsilon times
/// this.
void MatMulMagnitude(MatrixView<const float> x, const Tensor& weights, MatrixView<float> y);

/// Rotates a head's channels [head_dim] to a position; pairs are (j, j + dim / 2).
void Rotate(const cpu::RopeTable& rope, int64_t position, float* head);

/// Where a query finds a token of a KV cache.
enum class KvSource : uint8_t { kUnseen, kStored, kExact };
/// What the query at `position` reads of `token`: see sinks, window and sliding_window of cpu::KvLayerSpec.
/// Tokens from `fresh` on are read as exact copies whatever the window.
KvSource SourceOf(int sinks, int window, int64_t sliding_window, int64_t position, int64_t token,
                  int64_t fresh = std::numeric_limits<int64_t>::max());

/// The squared distances of x [v] to the entries [entries, v] of a codebook.
std::vector<double> Distances(std::span<const double> x, std::span<const Half> entries);

/// One query head over keys and values [tokens, head_dim], all visible; out [head_dim]. No token gives 0.
void Attend(std::span<const float> q, MatrixView<const float> keys, MatrixView<const float> values,
            double scale, std::span<float> out);

}  // namespace vqllm::reference
