#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/kv_layer.h"

namespace vqllm::cpu {

/// A quad of queries, and what a codec made of it.
struct PreparedQuad : QueryQuad {
  bool lookup = false;  ///< `tables` is in use
  std::vector<float>
      tables;  ///< kept from quad to quad: pages fresh from the system cost more than the tables
};

/// Stores one side (K or V) of a KV cache: the bytes of one token of one KV head are one record. Tokens are
/// given by the addresses of their records, so that pages and windows need not be contiguous.
class KvCodec {
 public:
  virtual ~KvCodec() = default;
  /// Bytes of a record.
  int64_t bytes() const { return bytes_; }
  int64_t head_dim() const { return head_dim_; }
  /// Bytes of codebooks as stored on disk.
  virtual int64_t fixed_bytes() const { return 0; }

  /// Encodes x [n, head_dim] of KV head `head` into n records.
  virtual void Encode(MatrixView<const float> x, int head, uint8_t* const* records) const = 0;
  /// Decodes n records into out [n, head_dim].
  virtual void Decode(const uint8_t* const* records, int64_t n, int head, MatrixView<float> out) const = 0;

  /// Called once before the scores of about `tokens` tokens are asked for.
  virtual void Prepare(int head, int64_t tokens, PreparedQuad& quad) const;
  /// scores[t][h] = q[h] . key t, as RowScores. `records` holds n + kRowsAhead addresses.
  virtual void Scores(const PreparedQuad& quad, int head, const uint8_t* const* records, int64_t n,
                      float* scores) const;
  /// out[h][c] += sum_t weights[t][h] value t[c], as RowValues; out is [kQuad][PaddedChannels(head_dim)].
  virtual void AddValues(const float* weights, int heads, int head, const uint8_t* const* records, int64_t n,
                         float* out) const;

 protected:
  KvCodec(int64_t bytes, int64_t head_dim) : bytes_(bytes), head_dim_(head_dim) {}

 private:
  int64_t bytes_;
  int64_t head_dim_;
};

/// Scores with keys [n, PaddedChannels(head_dim)] that have been decoded to floats; zeros behind head_dim.
void FloatScores(const QueryQuad& quad, MatrixView<const float> keys, float* scores);

/// The codec of a side. The format and its codebooks have been checked (see KvSide).
std::unique_ptr<KvCodec> MakeKvCodec(const KvSide& side, int kv_heads, int head_dim);

/// Of that kind; MakeKvCodec picks.
std::unique_ptr<KvCodec> MakeRowCodec(const Format& format, int head_dim);
std::unique_ptr<KvCodec> MakeTableCodec(const KvSide& side, int kv_heads, int head_dim);

}  // namespace vqllm::cpu
