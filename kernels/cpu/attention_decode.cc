#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/rope.h"
#include "vq/base/check.h"
#include "vq/base/parallel.h"

namespace vqllm::cpu {
namespace {

// Tokens of one step of the online softmax. Lookup tables come from L2 once a tile: with 256 tokens that cost
// a tenth of the time of cq-4. The keys of a tile in fp16 are 256 KiB and stay in L2 for further quads of
// query heads.
constexpr int64_t kTile = 1024;

// Tokens of one piece of a long context: long enough to pay for the lookup tables that each piece makes,
// short enough to give 16 threads work on 8 KV heads from 4096 tokens on.
constexpr int64_t kSplit = 2048;

constexpr float kNone = -std::numeric_limits<float>::infinity();

/// The softmax of a quad over one piece: out is not divided by sums yet.
struct Partial {
  float largest[kQuad];
  float sums[kQuad];
  std::vector<float> out;  // [kQuad][padded head_dim]
};

/// Everything that one quad of query heads reads in one piece of the context.
class SplitReader {
 public:
  SplitReader(const KvStore& store, const KvRow& row, int head, const RopeTable& rope)
      : store_(store), row_(row), head_(head), rope_(rope), addresses_(kTile + kRowsAhead) {}

  void Attend(const PreparedQuad& quad, int64_t position, int64_t begin, int64_t end, Partial& partial) {
    const int64_t channels = PaddedChannels(store_.spec().head_dim);
    std::fill_n(partial.largest, kQuad, kNone);
    std::fill_n(partial.sums, kQuad, 0.0f);
    partial.out.assign(static_cast<size_t>(kQuad * channels), 0.0f);
    KvRun split[KvStore::kMaxRuns];
    const int runs = store_.Runs(position, begin, end, split);
    for (int r = 0; r < runs; ++r) {
      for (int64_t t = split[r].begin; t < split[r].end; t += kTile) {
        const int64_t n = std::min(kTile, split[r].end - t);
        Scores(quad, split[r], t, n);
        float keep[kQuad];
        SoftmaxTile(scores_, n, partial.largest, partial.sums, keep);
        for (int h = 0; h < quad.heads; ++h) {
          if (keep[h] == 1) continue;
          float* out = partial.out.data() + h * channels;
          for (int64_t c = 0; c < channels; ++c) out[c] *= keep[h];
        }
        store_.Addresses(KvPart::kValue, row_, head_, split[r], t, n, addresses_.data());
        store_.codec(KvPart::kValue, split[r].exact)
            .AddValues(scores_, quad.heads, head_, addresses_.data(), n, partial.out.data());
      }
    }
  }

 private:
  void Scores(const PreparedQuad& quad, const KvRun& run, int64_t begin, int64_t n) {
    store_.Addresses(KvPart::kKey, row_, head_, run, begin, n, addresses_.data());
    const KvCodec& codec = store_.codec(KvPart::kKey, run.exact);
    if (!store_.spec().keys_before_rope) return codec.Scores(quad, head_, addresses_.data(), n, scores_);
    // Unrotated keys are turned once for all query heads.
    const int64_t channels = PaddedChannels(store_.spec().head_dim);
    keys_.resize(static_cast<size_t>(kTile * channels));
    codec.Decode(addresses_.data(), n, head_, {keys_.data(), n, store_.spec().head_dim, channels});
    for (int64_t t = 0; t < n; ++t) Rotate(rope_, begin + t, keys_.data() + t * channels);
    FloatScores(quad, {keys_.data(), n, channels}, scores_);
  }

  const KvStore& store_;
  const KvRow& row_;
  int head_;
  const RopeTable& rope_;
  std::vector<const uint8_t*> addresses_;
  std::vector<float> keys_;
  float scores_[kTile * kQuad];
};

/// The pieces of one quad: which token, KV head and query heads, and where its partial results begin.
struct Item {
  const QueryToken* token = nullptr;
  int head = 0;
  int64_t first_query_head = 0;
  int heads = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

void Merge(const Item& item, std::span<const Partial> partials, int64_t head_dim, MatrixView<float> out) {
  const int64_t channels = PaddedChannels(head_dim);
  for (int h = 0; h < item.heads; ++h) {
    float* to = out.Row(item.token->activation) + (item.first_query_head + h) * head_dim;
    std::fill_n(to, head_dim, 0.0f);
    float largest = kNone;
    for (const Partial& part : partials) largest = std::max(largest, part.largest[h]);
    float sum = 0;
    for (const Partial& part : partials) {
      if (part.largest[h] == kNone) continue;  // nothing visible in this piece
      const float weight = std::exp(part.largest[h] - largest);
      sum += weight * part.sums[h];
      const float* from = part.out.data() + h * channels;
      for (int64_t c = 0; c < head_dim; ++c) to[c] += weight * from[c];
    }
    const float factor = sum == 0 ? 0 : 1 / sum;
    for (int64_t c = 0; c < head_dim; ++c) to[c] *= factor;
  }
}

}  // namespace

void PrepareQuery(const RopeTable& rope, int64_t position, const float* q, int64_t head_dim, float* out) {
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  std::copy_n(q, head_dim, out);
  Rotate(rope, position, out);
  for (int64_t c = 0; c < head_dim; ++c) out[c] *= scale;
}

void AttendDecode(const KvStore& store, MatrixView<const float> q, std::span<const QueryToken> tokens,
                  const RopeTable& rope, MatrixView<float> out) {
  const KvLayerSpec& spec = store.spec();
  const int64_t head_dim = spec.head_dim;
  const int64_t channels = PaddedChannels(head_dim);
  const int64_t group = q.cols / head_dim / spec.kv_heads;

  std::vector<Item> items;
  std::vector<size_t> quads;  // the first item of each quad
  for (const QueryToken& token : tokens) {
    for (int head = 0; head < spec.kv_heads; ++head) {
      for (int64_t first = 0; first < group; first += kQuad) {
        quads.push_back(items.size());
        for (int64_t begin = 0; begin <= token.position; begin += kSplit) {
          items.push_back({.token = &token,
                           .head = head,
                           .first_query_head = head * group + first,
                           .heads = static_cast<int>(std::min<int64_t>(kQuad, group - first)),
                           .begin = begin,
                           .end = std::min(begin + kSplit, token.position + 1)});
        }
      }
    }
  }
  quads.push_back(items.size());

  std::vector<Partial> partials(items.size());
  ParallelFor(static_cast<int64_t>(items.size()), 1, [&](int64_t i, int64_t) {
    const Item& item = items[static_cast<size_t>(i)];
    std::vector<float> rotated(static_cast<size_t>(kQuad * channels));
    const float* from = q.Row(item.token->activation) + item.first_query_head * head_dim;
    for (int h = 0; h < item.heads; ++h) {
      PrepareQuery(rope, item.token->position, from + h * head_dim, head_dim, rotated.data() + h * channels);
    }
    thread_local PreparedQuad quad;
    quad.lookup = false;
    quad.heads = item.heads;
    quad.q = rotated.data();
    if (!spec.keys_before_rope) {
      store.codec(KvPart::kKey, false).Prepare(item.head, item.end - item.begin, quad);
    }
    SplitReader reader(store, *item.token->row, item.head, rope);
    reader.Attend(quad, item.token->position, item.begin, item.end, partials[static_cast<size_t>(i)]);
  });
  for (size_t quad = 0; quad + 1 < quads.size(); ++quad) {
    Merge(items[quads[quad]], std::span(partials).subspan(quads[quad], quads[quad + 1] - quads[quad]),
          head_dim, out);
  }
}

}  // namespace vqllm::cpu
