#pragma once

#include <cstdint>
#include <vector>

namespace vqllm::cpu {

/// fp16 copies of the first and the most recent tokens of one sequence.
class KvWindow {
 public:
  KvWindow(int kv_heads, int head_dim, int sinks, int window);

  /// Announces `count` tokens at positions past ...; those that no coming query reads as fp16 are dropped.
  /// past == 0 begins a new sequence.
  void Begin(int64_t past, int64_t count);
  /// Keeps a token of one head, where a query may want it. Heads and positions may come from several threads.
  void Store(int64_t position, int head, const float* key, const float* value);
  /// The halves of a kept token and head, [2: key, value][head_dim]; null where it is not kept.
  const uint16_t* Find(int64_t position, int head) const;
  /// Of a full window, between two calls.
  int64_t bytes() const;

 private:
  int kv_heads_;
  int head_dim_;
  int64_t sinks_;
  int64_t window_;
  std::vector<uint16_t> first_;   // [sinks, kv_heads, 2, head_dim]
  std::vector<uint16_t> recent_;  // [tokens, kv_heads, 2, head_dim]
  int64_t recent_begin_ = 0;      // position of the first token of recent_
  int64_t recent_end_ = 0;
};

}  // namespace vqllm::cpu
