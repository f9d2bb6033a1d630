#pragma once

#include <cstdint>

#include "vq/base/view.h"

// The fp32 matrix product of prefill. x is packed once for all tiles of W; a tile is decoded weights, by rows
// or by columns, as its decoder writes them. Every sum runs over k in the same order whatever the number of
// tokens and threads, so a token's outputs do not depend on what it is batched with.
namespace vqllm::cpu {

/// Floats that m tokens of k values take when packed.
int64_t PackedSize(int64_t m, int64_t k);

/// Packs x [m, k] into `packed` [PackedSize(m, k)]: panels of tokens, [k][tokens of the panel] each, padded
/// with zeros to whole vectors. Runs on the pool.
void PackTokens(MatrixView<const float> x, float* packed);

/// Decoded weights [rows, k]; element (r, c) lies at data[r * row_stride + c * col_stride].
struct WeightTile {
  const float* data;
  int64_t rows;
  int64_t row_stride;
  int64_t col_stride;
};

/// y [m, tile.rows] = x [m, k] tile^T for packed x; in the caller's thread.
void MultiplyTile(const float* packed, int64_t k, const WeightTile& tile, MatrixView<float> y);

}  // namespace vqllm::cpu
