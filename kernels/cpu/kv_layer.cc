#include "kernels/cpu/kv_layer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/kv_codec.h"
#include "kernels/cpu/kv_window.h"
#include "kernels/cpu/vector_ops.h"
#include "vq/base/check.h"
#include "vq/base/parallel.h"

namespace vqllm::cpu {
namespace {

// Keys of one block of the online softmax. Blocks begin at multiples of it, whatever the call, so that a
// query's sums are made in the same order in a prompt as in a decode step.
constexpr int64_t kBlock = 64;

constexpr float kNone = -std::numeric_limits<float>::infinity();

void Rotate(const RopeTable& rope, int64_t position, float* head, int64_t stride = 1) {
  const int half = rope.dim / 2;
  const float* cos = rope.cos.data() + position * half;
  const float* sin = rope.sin.data() + position * half;
  for (int j = 0; j < half; ++j) {
    float& a = head[j * stride];
    float& b = head[(j + half) * stride];
    const float turned = a * cos[j] - b * sin[j];
    b = b * cos[j] + a * sin[j];
    a = turned;
  }
}

/// The running softmax of one query head.
struct Query {
  int64_t position = 0;
  const float* q = nullptr;  // rotated, times 1 / sqrt(head_dim)
  float* out = nullptr;      // [head_dim]: the weighted sum so far
  float largest = kNone;
  float sum = 0;
};

/// One block of keys and values of one KV head, decoded.
struct Block {
  std::vector<float> keys;    // [head_dim, kBlock]
  std::vector<float> values;  // [kBlock, head_dim]
  explicit Block(int head_dim)
      : keys(static_cast<size_t>(head_dim * kBlock)), values(static_cast<size_t>(head_dim * kBlock)) {}
};

}  // namespace

struct KvLayer::Impl {
  Impl(KvLayerSpec spec_in, int64_t pages_in, int slots)
      : spec(std::move(spec_in)),
        pages(pages_in),
        key_codec(MakeKvCodec(spec.key, spec.kv_heads, spec.head_dim)),
        value_codec(MakeKvCodec(spec.value, spec.kv_heads, spec.head_dim)),
        keys(static_cast<size_t>(pages * spec.kv_heads * spec.page_tokens * key_codec->bytes())),
        values(static_cast<size_t>(pages * spec.kv_heads * spec.page_tokens * value_codec->bytes())),
        windows(static_cast<size_t>(slots), KvWindow(spec.kv_heads, spec.head_dim, spec.sinks, spec.window)) {
  }

  /// Pages are [page][kv head][token][record].
  int64_t Record(const KvRow& row, int head, int64_t position) const {
    const int64_t page = row.pages[static_cast<size_t>(position / spec.page_tokens)];
    VQLLM_CHECK(page >= 0 && page < pages, "page {}", page);
    return (page * spec.kv_heads + head) * spec.page_tokens + position % spec.page_tokens;
  }

  /// Positions of [begin, end) that the query reads as fp16: sinks, and the window before it.
  bool Exact(int64_t query, int64_t position) const {
    return position < spec.sinks || position > query - spec.window;
  }
  bool Visible(int64_t query, int64_t position) const {
    if (position > query) return false;
    return spec.sliding_window == 0 || position > query - spec.sliding_window || position < spec.sinks;
  }

  void LoadStored(const KvRow& row, int head, const RopeTable& rope, int64_t begin, int64_t end,
                  Block& block) const;
  void LoadExact(const KvRow& row, int head, const RopeTable& rope, int64_t begin, int64_t end,
                 Block& block) const;
  void Accumulate(Query& query, const Block& block, int64_t block_begin, int64_t begin, int64_t end) const;
  void AttendHead(MatrixView<const float> q, const KvRow& row, int head, int group, const RopeTable& rope,
                  MatrixView<float> out) const;

  KvLayerSpec spec;
  int64_t pages;
  std::unique_ptr<KvCodec> key_codec;
  std::unique_ptr<KvCodec> value_codec;
  std::vector<uint8_t> keys;
  std::vector<uint8_t> values;
  std::vector<KvWindow> windows;  // by slot
};

KvLayer::KvLayer(KvLayerSpec spec, int64_t pages, int slots)
    : impl_(std::make_unique<Impl>(std::move(spec), pages, slots)) {}

KvLayer::~KvLayer() = default;

void KvLayer::Append(MatrixView<const float> k, MatrixView<const float> v, std::span<const KvRow> rows,
                     const RopeTable& rope) {
  Impl& m = *impl_;
  const int d = m.spec.head_dim;
  for (const KvRow& row : rows) {
    KvWindow& window = m.windows[static_cast<size_t>(row.slot)];
    window.Begin(row.past, row.count);
    ParallelFor(row.count * m.spec.kv_heads, 64, [&](int64_t first, int64_t last) {
      std::vector<float> key(static_cast<size_t>(d));
      for (int64_t i = first; i < last; ++i) {
        const int head = static_cast<int>(i % m.spec.kv_heads);
        const int64_t token = row.begin + i / m.spec.kv_heads;
        const int64_t position = row.past + i / m.spec.kv_heads;
        std::copy_n(k.Row(token) + int64_t{head} * d, d, key.data());
        const float* value = v.Row(token) + int64_t{head} * d;
        if (!m.spec.keys_before_rope) Rotate(rope, position, key.data());
        const int64_t record = m.Record(row, head, position);
        m.key_codec->Encode(key.data(), head, m.keys.data() + record * m.key_codec->bytes());
        m.value_codec->Encode(value, head, m.values.data() + record * m.value_codec->bytes());
        window.Store(position, head, key.data(), value);
      }
    });
  }
}

void KvLayer::Impl::LoadStored(const KvRow& row, int head, const RopeTable& rope, int64_t begin, int64_t end,
                               Block& block) const {
  for (int64_t position = begin; position < end; ++position) {
    const int64_t record = Record(row, head, position);
    const int64_t at = position % kBlock;
    key_codec->Decode(keys.data() + record * key_codec->bytes(), head, kBlock, block.keys.data() + at);
    value_codec->Decode(values.data() + record * value_codec->bytes(), head, 1,
                        block.values.data() + at * spec.head_dim);
    if (spec.keys_before_rope) Rotate(rope, position, block.keys.data() + at, kBlock);
  }
}

void KvLayer::Impl::LoadExact(const KvRow& row, int head, const RopeTable& rope, int64_t begin, int64_t end,
                              Block& block) const {
  const KvWindow& window = windows[static_cast<size_t>(row.slot)];
  for (int64_t position = begin; position < end; ++position) {
    const int64_t at = position % kBlock;
    if (!window.Load(position, head, block.keys.data() + at, kBlock,
                     block.values.data() + at * spec.head_dim))
      continue;
    if (spec.keys_before_rope) Rotate(rope, position, block.keys.data() + at, kBlock);
  }
}

void KvLayer::Impl::Accumulate(Query& query, const Block& block, int64_t block_begin, int64_t begin,
                               int64_t end) const {
  const int64_t n = end - begin;
  const int64_t at = begin - block_begin;
  float scores[kBlock];
  KeyScores(query.q, block.keys.data() + at, spec.head_dim, kBlock, n, scores);
  const float largest = std::max(query.largest, *std::max_element(scores, scores + n));
  const float keep = query.largest == kNone ? 0.0f : std::exp(query.largest - largest);
  query.sum = query.sum * keep + ExpSum(scores, n, largest);
  query.largest = largest;
  AddWeighted(scores, block.values.data() + at * spec.head_dim, n, spec.head_dim, keep, query.out);
}

void KvLayer::Impl::AttendHead(MatrixView<const float> q, const KvRow& row, int head, int group,
                               const RopeTable& rope, MatrixView<float> out) const {
  const int64_t d = spec.head_dim;
  const int64_t total = row.past + row.count;
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(d)));
  std::vector<float> rotated(static_cast<size_t>(row.count * group * d));
  std::vector<Query> queries(static_cast<size_t>(row.count * group));
  for (int64_t i = 0; i < row.count * group; ++i) {
    Query& query = queries[static_cast<size_t>(i)];
    const int64_t column = (int64_t{head} * group + i % group) * d;
    float* to = rotated.data() + i * d;
    std::copy_n(q.Row(row.begin + i / group) + column, d, to);
    query.position = row.past + i / group;
    Rotate(rope, query.position, to);
    for (int64_t c = 0; c < d; ++c) to[c] *= scale;
    query.q = to;
    query.out = out.Row(row.begin + i / group) + column;
    std::fill_n(query.out, d, 0.0f);
  }
  Block stored(spec.head_dim);
  Block exact(spec.head_dim);
  // The first position that the earliest query sees, sinks aside: whole blocks before it are skipped.
  const int64_t seen = spec.sliding_window > 0 ? std::max<int64_t>(0, row.past - spec.sliding_window + 1) : 0;
  const bool any_exact = spec.sinks > 0 || spec.window > 0;
  for (int64_t begin = 0; begin < total; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, total);
    if (end <= seen && begin >= spec.sinks) continue;
    LoadStored(row, head, rope, begin, end, stored);
    if (any_exact) LoadExact(row, head, rope, begin, end, exact);
    for (Query& query : queries) {
      // Runs of positions that the query sees and reads from the same place.
      for (int64_t run = begin; run < end && run <= query.position;) {
        int64_t stop = run + 1;
        const bool visible = Visible(query.position, run);
        const bool from_exact = Exact(query.position, run);
        while (stop < end && Visible(query.position, stop) == visible &&
               Exact(query.position, stop) == from_exact)
          ++stop;
        if (visible) Accumulate(query, from_exact ? exact : stored, begin, run, stop);
        run = stop;
      }
    }
  }
  for (Query& query : queries) {
    const float factor = query.sum > 0 ? 1 / query.sum : 0;
    for (int64_t c = 0; c < d; ++c) query.out[c] *= factor;
  }
}

void KvLayer::Attend(MatrixView<const float> q, std::span<const KvRow> rows, const RopeTable& rope,
                     MatrixView<float> out) const {
  const Impl& m = *impl_;
  const int64_t heads = q.cols / m.spec.head_dim;
  VQLLM_CHECK(q.cols % m.spec.head_dim == 0 && heads % m.spec.kv_heads == 0, "q of {} columns", q.cols);
  const int group = static_cast<int>(heads / m.spec.kv_heads);
  // Queries of a prompt are cut into pieces, so that a long one keeps all threads busy.
  std::vector<KvRow> pieces;
  for (const KvRow& row : rows) {
    for (int64_t done = 0; done < row.count; done += kBlock) {
      KvRow piece = row;
      piece.begin += done;
      piece.past += done;
      piece.count = std::min(kBlock, row.count - done);
      pieces.push_back(piece);
    }
  }
  ParallelFor(static_cast<int64_t>(pieces.size()) * m.spec.kv_heads, 1, [&](int64_t i, int64_t) {
    m.AttendHead(q, pieces[static_cast<size_t>(i / m.spec.kv_heads)], static_cast<int>(i % m.spec.kv_heads),
                 group, rope, out);
  });
}

int64_t KvLayer::bytes_per_token() const {
  return (impl_->key_codec->bytes() + impl_->value_codec->bytes()) * impl_->spec.kv_heads;
}

int64_t KvLayer::fixed_bytes() const {
  int64_t bytes = impl_->key_codec->fixed_bytes() + impl_->value_codec->fixed_bytes();
  for (const KvWindow& window : impl_->windows) bytes += window.bytes();
  return bytes;
}

}  // namespace vqllm::cpu
