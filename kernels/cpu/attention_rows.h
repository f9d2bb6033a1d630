#pragma once

#include <cstdint>

#include "vq/base/math.h"

// The two loops of decode attention over stored tokens: the scores of up to four query heads with every key,
// and the weighted sum of the values. Elements become floats in registers; a token is read once for all four
// heads.
namespace vqllm::cpu {

/// Query heads of one KV head that are worked on together. Scores and weights are [tokens][kQuad], so that a
/// token's scores are one vector of 128 bits.
inline constexpr int kQuad = 4;

/// Vectors of every target divide this many channels: buffers of floats are padded with zeros to it.
inline constexpr int64_t kRowPad = 16;
inline int64_t PaddedChannels(int64_t head_dim) { return RoundUp(head_dim, kRowPad); }

/// Tokens whose addresses stand behind the last one of a list of rows: what is prefetched next.
inline constexpr int64_t kRowsAhead = 8;

/// Groups of a row of integers.
inline constexpr int64_t kMaxRowGroups = 64;

enum class RowKind : uint8_t { kF32, kF16, kBF16, kInt8, kInt4 };

/// How one token of one KV head lies in memory.
struct RowLayout {
  RowKind kind = RowKind::kF32;
  int64_t dim = 0;    ///< channels, a multiple of kRowPad (kInt4: of 2 kRowPad)
  int64_t bytes = 0;  ///< of the whole row
  /// Integers: channels that share a scale, a multiple of kRowPad or >= dim. Codes stand first; kInt4 has
  /// channel c in the low and channel c + dim / 2 in the high half of byte c. Behind them, at byte `numbers`,
  /// each group's fp16 scale and, unless symmetric, its fp16 offset: value = scale * code + offset, offset =
  /// -scale * 2^(bits-1) where symmetric.
  int64_t group = 0;
  int64_t numbers = 0;
  bool symmetric = false;
};

/// Up to kQuad query heads.
struct QueryQuad {
  int heads = 0;             ///< 1 .. kQuad
  const float* q = nullptr;  ///< [kQuad][PaddedChannels(head_dim)], zeros behind head_dim and behind `heads`
};

/// scores[t][h] = q[h] . row t, for t in [0, n); the lanes behind quad.heads are finite. `rows` holds n +
/// kRowsAhead addresses.
void RowScores(const RowLayout& layout, const QueryQuad& quad, const uint8_t* const* rows, int64_t n,
               float* scores);

/// out[h][c] += sum_t weights[t][h] * row t[c], h < heads; out is [kQuad][layout.dim]. `rows` as above.
void RowValues(const RowLayout& layout, const float* weights, int heads, const uint8_t* const* rows,
               int64_t n, float* out);

/// One tile of an online softmax. Raises largest[h] to the largest of scores[.][h]; factors keep[h] = exp(old
/// - new largest) (0 where there was none); scores become exp(score - largest) and sums[h] = sums[h] *
/// keep[h] + their sum. All arrays hold kQuad heads.
void SoftmaxTile(float* scores, int64_t n, float* largest, float* sums, float* keep);

}  // namespace vqllm::cpu
