#include "kernels/cpu/kv_window.h"

#include <algorithm>

#include "kernels/cpu/vector_ops.h"

namespace vqllm::cpu {

KvWindow::KvWindow(int kv_heads, int head_dim, int sinks, int window)
    : kv_heads_(kv_heads),
      head_dim_(head_dim),
      sinks_(sinks),
      window_(window),
      first_(static_cast<size_t>(int64_t{sinks} * kv_heads * 2 * head_dim)) {}

void KvWindow::Begin(int64_t past, int64_t count) {
  if (window_ == 0) return;
  const int64_t token = int64_t{kv_heads_} * 2 * head_dim_;
  if (past == 0) {
    recent_.clear();
    recent_begin_ = 0;
  }
  // The query at `past` reads positions > past - window. Old tokens go in large steps: moving the rest each
  // time would cost more than the attention.
  const int64_t first = std::max<int64_t>(recent_begin_, past - window_ + 1);
  if (first - recent_begin_ > window_ + count) {
    recent_.erase(recent_.begin(), recent_.begin() + (first - recent_begin_) * token);
    recent_begin_ = first;
  }
  recent_end_ = past + count;
  recent_.resize(static_cast<size_t>((recent_end_ - recent_begin_) * token));
}

const uint16_t* KvWindow::Find(int64_t position, int head) const {
  if (position < sinks_) return first_.data() + (position * kv_heads_ + head) * 2 * head_dim_;
  if (window_ == 0 || position < recent_begin_ || position >= recent_end_) return nullptr;
  return recent_.data() + ((position - recent_begin_) * kv_heads_ + head) * 2 * head_dim_;
}

void KvWindow::Store(int64_t position, int head, const float* key, const float* value) {
  if (uint16_t* to = const_cast<uint16_t*>(Find(position, head))) {
    FloatsToHalves(key, head_dim_, to);
    FloatsToHalves(value, head_dim_, to + head_dim_);
  }
}

int64_t KvWindow::bytes() const {
  return (sinks_ + window_) * kv_heads_ * 2 * head_dim_ * int64_t{sizeof(uint16_t)};
}

}  // namespace vqllm::cpu
