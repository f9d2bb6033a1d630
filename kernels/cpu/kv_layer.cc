#include "kernels/cpu/kv_layer.h"

#include <algorithm>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/kv_store.h"
#include "kernels/cpu/rope.h"
#include "vq/base/check.h"
#include "vq/base/math.h"
#include "vq/base/parallel.h"

namespace vqllm::cpu {
namespace {

// Tokens that one thread encodes at a time: a codebook is searched for four of them at once.
constexpr int64_t kEncoded = 32;

// Rows of at most this many tokens are read token by token, in the formats as they lie; longer ones decode
// blocks of keys for all their queries.
constexpr int64_t kDecodeTokens = 4;

}  // namespace

struct KvLayer::Impl {
  KvStore store;
};

KvLayer::KvLayer(KvLayerSpec spec, int64_t pages, int slots)
    : impl_(std::make_unique<Impl>(Impl{KvStore(std::move(spec), pages, slots)})) {}

KvLayer::~KvLayer() = default;

void KvLayer::Append(MatrixView<const float> k, MatrixView<const float> v, std::span<const KvRow> rows,
                     const RopeTable& rope) {
  KvStore& store = impl_->store;
  const KvLayerSpec& spec = store.spec();
  const int64_t d = spec.head_dim;
  VQLLM_CHECK(k.cols == spec.kv_heads * d && v.cols == k.cols, "k of {} columns", k.cols);
  for (const KvRow& row : rows) {
    KvWindow& window = store.window(row.slot);
    window.Begin(row.past, row.count);
    const int64_t tiles = CeilDiv(row.count, kEncoded);
    ParallelFor(tiles * spec.kv_heads, 1, [&](int64_t i, int64_t) {
      const int head = static_cast<int>(i % spec.kv_heads);
      const int64_t begin = i / spec.kv_heads * kEncoded;
      const int64_t n = std::min(kEncoded, row.count - begin);
      std::vector<float> keys(static_cast<size_t>(n * d));
      const MatrixView<const float> values(v.Row(row.begin + begin) + head * d, n, d, v.stride);
      uint8_t* key_records[kEncoded];
      uint8_t* value_records[kEncoded];
      for (int64_t t = 0; t < n; ++t) {
        float* key = keys.data() + t * d;
        const int64_t position = row.past + begin + t;
        std::copy_n(k.Row(row.begin + begin + t) + head * d, d, key);
        if (!spec.keys_before_rope) Rotate(rope, position, key);
        key_records[t] = store.Record(KvPart::kKey, row, head, position);
        value_records[t] = store.Record(KvPart::kValue, row, head, position);
        window.Store(position, head, key, values.Row(t));
      }
      store.codec(KvPart::kKey, false).Encode({keys.data(), n, d}, head, key_records);
      store.codec(KvPart::kValue, false).Encode(values, head, value_records);
    });
  }
}

void KvLayer::Attend(MatrixView<const float> q, std::span<const KvRow> rows, const RopeTable& rope,
                     MatrixView<float> out) const {
  const KvStore& store = impl_->store;
  const int64_t d = store.spec().head_dim;
  VQLLM_CHECK(q.cols % d == 0 && q.cols / d % store.spec().kv_heads == 0 && out.cols == q.cols,
              "q of {} columns", q.cols);
  std::vector<QueryToken> tokens;
  std::vector<KvRow> prompts;
  for (const KvRow& row : rows) {
    if (row.count > kDecodeTokens) {
      prompts.push_back(row);
      continue;
    }
    for (int64_t t = 0; t < row.count; ++t) {
      tokens.push_back({.row = &row, .activation = row.begin + t, .position = row.past + t});
    }
  }
  if (!tokens.empty()) AttendDecode(store, q, tokens, rope, out);
  if (!prompts.empty()) AttendPrefill(store, q, prompts, rope, out);
}

int64_t KvLayer::bytes_per_token() const { return impl_->store.bytes_per_token(); }

int64_t KvLayer::fixed_bytes() const { return impl_->store.fixed_bytes(); }

}  // namespace vqllm::cpu
