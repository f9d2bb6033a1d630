#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/vector_ops.h"
#include "vq/base/parallel.h"

namespace vqllm::cpu {
namespace {

// Keys of one block of the online softmax. Blocks begin at multiples of it, whatever the call, so that a
// query's sums are made in the same order however a prompt is cut.
constexpr int64_t kBlock = 64;

// Tokens whose queries share a decoded block.
constexpr int64_t kQueryTokens = 64;

constexpr float kNone = -std::numeric_limits<float>::infinity();

/// The running softmax of one query head.
struct Query {
  int64_t position = 0;
  const float* q = nullptr;
  float* out = nullptr;  // [head_dim]: the weighted sum so far
  float largest = kNone;
  float sum = 0;
};

/// One block of keys and values of one KV head as floats, from the pages or from the fp16 copies.
class Block {
 public:
  explicit Block(int64_t head_dim)
      : head_dim_(head_dim),
        keys_(static_cast<size_t>(head_dim * kBlock)),
        rows_(keys_.size()),
        values_(keys_.size()) {}

  /// Positions [run.begin, run.end) of the block that begins at `begin`.
  void Load(const KvStore& store, const KvRow& row, int head, const RopeTable& rope, const KvRun& run,
            int64_t begin) {
    const uint8_t* addresses[kBlock + kRowsAhead];
    const int64_t n = run.size();
    const int64_t at = run.begin - begin;
    store.Addresses(KvPart::kKey, row, head, run, run.begin, n, addresses);
    store.codec(KvPart::kKey, run.exact).Decode(addresses, n, head, {rows_.data(), n, head_dim_});
    for (int64_t t = 0; t < n; ++t) {
      float* key = rows_.data() + t * head_dim_;
      if (store.spec().keys_before_rope) Rotate(rope, run.begin + t, key);
      for (int64_t c = 0; c < head_dim_; ++c) keys_[static_cast<size_t>(c * kBlock + at + t)] = key[c];
    }
    store.Addresses(KvPart::kValue, row, head, run, run.begin, n, addresses);
    store.codec(KvPart::kValue, run.exact)
        .Decode(addresses, n, head, {values_.data() + at * head_dim_, n, head_dim_});
  }

  /// Takes tokens [at, at + n) of the block into a query.
  void Accumulate(int64_t at, int64_t n, Query& query) const {
    float scores[kBlock];
    KeyScores(query.q, keys_.data() + at, head_dim_, kBlock, n, scores);
    const float largest = std::max(query.largest, *std::max_element(scores, scores + n));
    const float keep = query.largest == kNone ? 0.0f : std::exp(query.largest - largest);
    query.sum = query.sum * keep + ExpSum(scores, n, largest);
    query.largest = largest;
    AddWeighted(scores, values_.data() + at * head_dim_, n, head_dim_, keep, query.out);
  }

 private:
  int64_t head_dim_;
  std::vector<float> keys_;    // [head_dim, kBlock]
  std::vector<float> rows_;    // [kBlock, head_dim]
  std::vector<float> values_;  // [kBlock, head_dim]
};

/// All queries of one piece of a row on one KV head.
void AttendPiece(const KvStore& store, MatrixView<const float> q, const KvRow& row, int head, int64_t group,
                 const RopeTable& rope, MatrixView<float> out) {
  const int64_t d = store.spec().head_dim;
  const int64_t total = row.past + row.count;
  std::vector<float> rotated(static_cast<size_t>(row.count * group * d));
  std::vector<Query> queries(static_cast<size_t>(row.count * group));
  for (int64_t i = 0; i < row.count * group; ++i) {
    Query& query = queries[static_cast<size_t>(i)];
    const int64_t column = (head * group + i % group) * d;
    query.position = row.past + i / group;
    query.q = rotated.data() + i * d;
    PrepareQuery(rope, query.position, q.Row(row.begin + i / group) + column, d, rotated.data() + i * d);
    query.out = out.Row(row.begin + i / group) + column;
    std::fill_n(query.out, d, 0.0f);
  }
  Block stored(d);
  Block exact(d);
  for (int64_t begin = 0; begin < total; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, total);
    // What any of the queries reads: of the pages, of the sinks, of the recent tokens. Each is one run, for
    // queries follow each other without a gap.
    enum { kPages, kSinks, kRecent, kPlaces };
    KvRun needed[kPlaces] = {{end, begin, false}, {end, begin, true}, {end, begin, true}};
    for (int64_t i = 0; i < row.count; ++i) {
      KvRun runs[KvStore::kMaxRuns];
      const int count = store.Runs(row.past + i, begin, end, runs);
      for (int r = 0; r < count; ++r) {
        KvRun& all = needed[!runs[r].exact ? kPages : runs[r].begin < store.spec().sinks ? kSinks : kRecent];
        all.begin = std::min(all.begin, runs[r].begin);
        all.end = std::max(all.end, runs[r].end);
      }
    }
    for (const KvRun& run : needed) {
      if (run.begin < run.end) (run.exact ? exact : stored).Load(store, row, head, rope, run, begin);
    }
    for (Query& query : queries) {
      KvRun runs[KvStore::kMaxRuns];
      const int count = store.Runs(query.position, begin, end, runs);
      for (int r = 0; r < count; ++r) {
        (runs[r].exact ? exact : stored).Accumulate(runs[r].begin - begin, runs[r].size(), query);
      }
    }
  }
  for (Query& query : queries) {
    const float factor = query.sum == 0 ? 0 : 1 / query.sum;
    for (int64_t c = 0; c < d; ++c) query.out[c] *= factor;
  }
}

}  // namespace

void AttendPrefill(const KvStore& store, MatrixView<const float> q, std::span<const KvRow> rows,
                   const RopeTable& rope, MatrixView<float> out) {
  const int64_t kv_heads = store.spec().kv_heads;
  const int64_t group = q.cols / store.spec().head_dim / kv_heads;
  // Queries of a prompt are cut into pieces, so that a long one keeps all threads busy.
  std::vector<KvRow> pieces;
  for (const KvRow& row : rows) {
    for (int64_t done = 0; done < row.count; done += kQueryTokens) {
      KvRow piece = row;
      piece.begin += done;
      piece.past += done;
      piece.count = std::min(kQueryTokens, row.count - done);
      pieces.push_back(piece);
    }
  }
  ParallelFor(static_cast<int64_t>(pieces.size()) * kv_heads, 1, [&](int64_t i, int64_t) {
    AttendPiece(store, q, pieces[static_cast<size_t>(i / kv_heads)], static_cast<int>(i % kv_heads), group,
                rope, out);
  });
}

}  // namespace vqllm::cpu
