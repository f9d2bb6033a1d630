#include "kernels/cpu/kv_codec.h"

#include <algorithm>

#include "vq/base/check.h"

namespace vqllm::cpu {
namespace {

// Tokens that are decoded to floats at a time where a format has no loop of its own: 64 x 128 floats fit into
// L2 beside the codebooks.
constexpr int64_t kDecoded = 64;

/// Addresses of the rows of a matrix, the last repeated for the prefetches.
void RowAddresses(MatrixView<const float> rows, const uint8_t** addresses) {
  for (int64_t t = 0; t < rows.rows + kRowsAhead; ++t) {
    addresses[t] = reinterpret_cast<const uint8_t*>(rows.Row(std::min(t, rows.rows - 1)));
  }
}

RowLayout FloatRows(int64_t channels) {
  RowLayout layout;
  layout.dim = channels;
  return layout;  // bytes stay 0: what has just been decoded needs no prefetch
}

}  // namespace

void FloatScores(const QueryQuad& quad, MatrixView<const float> keys, float* scores) {
  std::vector<const uint8_t*> addresses(static_cast<size_t>(keys.rows + kRowsAhead));
  RowAddresses(keys, addresses.data());
  RowScores(FloatRows(keys.cols), quad, addresses.data(), keys.rows, scores);
}

void KvCodec::Prepare(int, int64_t, PreparedQuad&) const {}

void KvCodec::Scores(const PreparedQuad& quad, int head, const uint8_t* const* records, int64_t n,
                     float* scores) const {
  const int64_t channels = PaddedChannels(head_dim_);
  std::vector<float> keys(static_cast<size_t>(kDecoded * channels));
  for (int64_t t = 0; t < n; t += kDecoded) {
    const int64_t count = std::min(kDecoded, n - t);
    Decode(records + t, count, head, {keys.data(), count, head_dim_, channels});
    FloatScores(quad, {keys.data(), count, channels}, scores + t * kQuad);
  }
}

void KvCodec::AddValues(const float* weights, int heads, int head, const uint8_t* const* records, int64_t n,
                        float* out) const {
  const int64_t channels = PaddedChannels(head_dim_);
  std::vector<float> values(static_cast<size_t>(kDecoded * channels));
  const uint8_t* addresses[kDecoded + kRowsAhead];
  for (int64_t t = 0; t < n; t += kDecoded) {
    const int64_t count = std::min(kDecoded, n - t);
    Decode(records + t, count, head, {values.data(), count, head_dim_, channels});
    RowAddresses({values.data(), count, channels}, addresses);
    RowValues(FloatRows(channels), weights + t * kQuad, heads, addresses, count, out);
  }
}

std::unique_ptr<KvCodec> MakeKvCodec(const KvSide& side, int kv_heads, int head_dim) {
  switch (side.format.kind) {
    case FormatKind::kDense:
    case FormatKind::kInt:
      return MakeRowCodec(side.format, head_dim);
    case FormatKind::kTable:
      return MakeTableCodec(side, kv_heads, head_dim);
    case FormatKind::kLattice:
      break;
  }
  VQLLM_CHECK(false, "KV format {}", side.format.name);
}

}  // namespace vqllm::cpu
