#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "vq/base/half.h"
#include "vq/base/view.h"
#include "vq/format.h"

namespace vqllm::cpu {

/// Rotary position embedding as a table: row p holds the cosines and sines of position p, already times the
/// attention factor of YaRN. Pairs are (j, j + dim / 2), the Hugging Face order.
struct RopeTable {
  int dim = 0;             ///< rotated channels of a head, even, <= head_dim; the rest pass through
  std::vector<float> cos;  ///< [positions, dim / 2]
  std::vector<float> sin;  ///< [positions, dim / 2]
  int64_t positions() const { return dim == 0 ? 0 : static_cast<int64_t>(cos.size()) / (dim / 2); }
};

/// How one side (K or V) of one layer is stored.
struct KvSide {
  Format format;  ///< kDense, kInt (groups within a head) or kTable with scope kHeadChannel (subvector
                  ///< divides head_dim)
  /// kTable: for each stage [kv_heads * head_dim / subvector][entries][subvector], as Tensor::codebooks.
  std::vector<std::vector<Half>> codebooks;
};

struct KvLayerSpec {
  KvSide key;
  KvSide value;
  int kv_heads = 0;
  int head_dim = 0;
  int page_tokens = 32;
  int sinks = 0;   ///< the first `sinks` tokens of a sequence are read as fp16 whatever the format
  int window = 0;  ///< the query at position t reads keys and values of positions > t - window as fp16
  bool keys_before_rope = false;  ///< store keys unrotated and rotate them when read
  int64_t sliding_window = 0;  ///< the query at t sees positions > t - sliding_window, and the sinks; 0: all
};

/// One sequence of a batch: rows [begin, begin + count) of the activations are its tokens at positions past
/// .. past + count - 1.
struct KvRow {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t past = 0;
  int slot = 0;                    ///< which sequence this is: owner of an fp16 window; 0 .. slots - 1
  std::span<const int32_t> pages;  ///< page of each page_tokens positions; covers past + count tokens
};

/// Keys and values of one layer in pages, with the fp16 copies of sinks and recent tokens. What a query reads
/// depends on its position alone, never on how the tokens were cut into calls: a prompt in one piece, in
/// chunks or token by token gives the same attention.
class KvLayer {
 public:
  KvLayer(KvLayerSpec spec, int64_t pages, int slots);
  ~KvLayer();

  /// Rotates k (unless keys_before_rope), encodes and stores. k, v [tokens, kv_heads * head_dim], k not
  /// rotated yet.
  void Append(MatrixView<const float> k, MatrixView<const float> v, std::span<const KvRow> rows,
              const RopeTable& rope);

  /// out [tokens, heads * head_dim] = softmax(q k^T / sqrt(head_dim), causal) v for q [tokens, heads *
  /// head_dim] not rotated yet, over everything appended so far, its own tokens among them. heads is a
  /// multiple of kv_heads (GQA); softmax in fp32. A row with no visible token gives 0.
  void Attend(MatrixView<const float> q, std::span<const KvRow> rows, const RopeTable& rope,
              MatrixView<float> out) const;

  /// Bytes that one token adds to the pages: codes, scales and zeros of K and V.
  int64_t bytes_per_token() const;
  /// Bytes that do not grow with tokens: codebooks, windows and sinks of all slots.
  int64_t fixed_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vqllm::cpu
