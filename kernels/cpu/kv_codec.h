#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/kv_layer.h"

namespace vqllm::cpu {

/// Stores one side (K or V) of a KV cache head by head: the bytes of one token of one KV head are one record.
class KvCodec {
 public:
  virtual ~KvCodec() = default;
  /// Bytes of a record.
  int64_t bytes() const { return bytes_; }
  /// Encodes x [head_dim] of KV head `head`.
  virtual void Encode(const float* x, int head, uint8_t* record) const = 0;
  /// Decodes a record into out[c * stride], c in [0, head_dim).
  virtual void Decode(const uint8_t* record, int head, int64_t stride, float* out) const = 0;
  /// Bytes of codebooks.
  virtual int64_t fixed_bytes() const { return 0; }

 protected:
  explicit KvCodec(int64_t bytes) : bytes_(bytes) {}

 private:
  int64_t bytes_;
};

/// The codec of a side. The format and its codebooks have been checked (see KvSide).
std::unique_ptr<KvCodec> MakeKvCodec(const KvSide& side, int kv_heads, int head_dim);

}  // namespace vqllm::cpu
