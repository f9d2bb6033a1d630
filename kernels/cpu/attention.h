#pragma once

#include <span>

#include "kernels/cpu/kv_layer.h"
#include "kernels/cpu/kv_store.h"

namespace vqllm::cpu {

/// One query token: a row of q and out, at a position of the sequence `row`.
struct QueryToken {
  const KvRow* row = nullptr;
  int64_t activation = 0;
  int64_t position = 0;
};

/// KvLayer::Attend for tokens one at a time: the formats are read as they lie, long contexts are cut into
/// pieces that depend on the position alone and are merged in order, so that the result is the same at any
/// thread count and in any batch.
void AttendDecode(const KvStore& store, MatrixView<const float> q, std::span<const QueryToken> tokens,
                  const RopeTable& rope, MatrixView<float> out);

/// KvLayer::Attend for rows of many tokens: blocks of keys and values are decoded once for many queries. A
/// query's sums are made in an order that depends on its position alone.
void AttendPrefill(const KvStore& store, MatrixView<const float> q, std::span<const KvRow> rows,
                   const RopeTable& rope, MatrixView<float> out);

/// q of one head [head_dim], rotated to its position and times 1 / sqrt(head_dim).
void PrepareQuery(const RopeTable& rope, int64_t position, const float* q, int64_t head_dim, float* out);

}  // namespace vqllm::cpu
