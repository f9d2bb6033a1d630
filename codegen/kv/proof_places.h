#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codegen/kv/proof.h"

// Where the tokens of a proof lie in its buffers.
namespace vqllm::internal {

/// Word of a token's record in keys or values.
inline size_t RecordAt(const KvPlan& plan, const KvProofCase& proof, const KvSideLayout& layout, size_t row,
                       int head, int position) {
  const KvShape& shape = plan.shape;
  const int64_t page = proof.pages[row * static_cast<size_t>(shape.Pages()) +
                                   static_cast<size_t>(position / shape.page_tokens)];
  return static_cast<size_t>(
      ((page * shape.kv_heads + head) * shape.page_tokens + position % shape.page_tokens) *
      layout.RecordWords());
}

/// True where a token of a sequence of `length` has an exact copy.
inline bool HasCopy(const KvShape& shape, int length, int position) {
  return position < shape.sinks || (shape.Ring() > 0 && position + shape.Ring() >= length);
}

/// Half of a token's exact key in `exact`; its value is head_dim halves behind it.
inline size_t CopyAt(const KvPlan& plan, const KvProofCase& proof, size_t row, int head, int position) {
  const KvShape& shape = plan.shape;
  const int place = position < shape.sinks ? position : shape.sinks + position % shape.Ring();
  return static_cast<size_t>(
      ((int64_t{proof.rows[4 * row + 3]} * shape.kv_heads + head) * shape.ExactTokens() + place) * 2 *
      shape.head_dim);
}

/// The rope buffer as the oracle wants it.
cpu::RopeTable RopeTableOf(const KvShape& shape, const std::vector<float>& rope);

}  // namespace vqllm::internal
