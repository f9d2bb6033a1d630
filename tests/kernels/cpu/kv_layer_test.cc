#include "kernels/cpu/kv_layer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "kernels/cpu/kv_codec.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/rope.h"
#include "vq/base/parallel.h"
#include "vq/base/rng.h"

namespace vqllm::cpu {
namespace {

RopeTable Rope(int dim, int64_t positions) {
  RopeTable rope;
  rope.dim = dim;
  for (int64_t p = 0; p < positions; ++p) {
    for (int j = 0; j < dim / 2; ++j) {
      const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * j / dim);
      rope.cos.push_back(static_cast<float>(std::cos(angle)));
      rope.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return rope;
}

/// A side with random codebooks where the format has any.
KvSide Side(const char* name, int kv_heads, int head_dim, uint64_t seed) {
  KvSide side;
  side.format = ParseFormat(name);
  Rng rng(seed);
  for (const int entries : side.format.entries) {
    std::vector<Half>& book = side.codebooks.emplace_back();
    for (int64_t i = 0; i < int64_t{kv_heads} * head_dim * entries; ++i) {
      book.push_back(Half(rng.Normal() / static_cast<float>(side.codebooks.size())));
    }
  }
  return side;
}

struct Shape {
  const char* key = "fp16";
  const char* value = "fp16";
  int kv_heads = 2;
  int group = 2;
  int head_dim = 64;
  int page_tokens = 32;
  int sinks = 0;
  int window = 0;
  bool before_rope = false;
  int sliding = 0;
  int64_t tokens = 150;
};

std::ostream& operator<<(std::ostream& os, const Shape& s) {
  return os << s.key << "/" << s.value << " heads " << s.kv_heads << "x" << s.group << "x" << s.head_dim
            << " page " << s.page_tokens << " sinks " << s.sinks << " window " << s.window << " before_rope "
            << s.before_rope << " sliding " << s.sliding << " tokens " << s.tokens;
}

/// Some sequences of random tokens, a layer to run them through, and the oracle.
class Rig {
 public:
  Rig(const Shape& setup, std::vector<int64_t> lengths)
      : setup_(setup),
        lengths_(std::move(lengths)),
        rope_(Rope(setup.head_dim, *std::max_element(lengths_.begin(), lengths_.end()))) {
    spec_.key = Side(setup.key, setup.kv_heads, setup.head_dim, 1);
    spec_.value = Side(setup.value, setup.kv_heads, setup.head_dim, 2);
    spec_.kv_heads = setup.kv_heads;
    spec_.head_dim = setup.head_dim;
    spec_.page_tokens = setup.page_tokens;
    spec_.sinks = setup.sinks;
    spec_.window = setup.window;
    spec_.keys_before_rope = setup.before_rope;
    spec_.sliding_window = setup.sliding;
    Rng rng(7);
    int32_t pages = 0;
    for (const int64_t length : lengths_) {
      begins_.push_back(total_);
      total_ += length;
      pages += static_cast<int32_t>((length + setup.page_tokens - 1) / setup.page_tokens);
    }
    std::vector<int32_t> order(static_cast<size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
    for (const int64_t length : lengths_) {
      const size_t n = static_cast<size_t>((length + setup.page_tokens - 1) / setup.page_tokens);
      pages_.emplace_back(order.end() - static_cast<int64_t>(n), order.end());
      order.resize(order.size() - n);
    }
    layer_ = std::make_unique<KvLayer>(spec_, pages, static_cast<int>(lengths_.size()));
    q_ = Random(rng, heads() * setup.head_dim);
    k_ = Random(rng, int64_t{setup.kv_heads} * setup.head_dim);
    v_ = Random(rng, int64_t{setup.kv_heads} * setup.head_dim);
  }

  int64_t heads() const { return int64_t{setup_.kv_heads} * setup_.group; }
  int64_t width() const { return heads() * setup_.head_dim; }
  std::vector<float>& q() { return q_; }
  std::vector<float>& k() { return k_; }
  std::vector<float>& v() { return v_; }
  const KvLayer& layer() const { return *layer_; }

  /// All tokens of all sequences, each in calls of at most `chunk` tokens; sequences go in the same calls.
  std::vector<float> Run(int64_t chunk) {
    std::vector<float> out(static_cast<size_t>(total_ * width()), -1.0f);
    for (int64_t done = 0;; done += chunk) {
      std::vector<KvRow> rows;
      for (size_t s = 0; s < lengths_.size(); ++s) {
        const int64_t past = std::min(done, lengths_[s]);
        rows.push_back({.begin = begins_[s] + past,
                        .count = std::min(chunk, lengths_[s] - past),
                        .past = past,
                        .slot = static_cast<int>(s),
                        .pages = pages_[s]});
      }
      if (std::all_of(rows.begin(), rows.end(), [](const KvRow& row) { return row.count == 0; })) return out;
      layer_->Append(View(k_), View(v_), rows, rope_);
      layer_->Attend(View(q_), rows, rope_, {out.data(), total_, width()});
    }
  }

  /// Compares every query with softmax attention in double over what the codecs decode.
  void ExpectOracle(const std::vector<float>& out) {
    const auto keys = MakeKvCodec(spec_.key, setup_.kv_heads, setup_.head_dim);
    const auto values = MakeKvCodec(spec_.value, setup_.kv_heads, setup_.head_dim);
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int head = 0; head < setup_.kv_heads; ++head) CheckHead(*keys, *values, s, head, out);
    }
  }

 private:
  std::vector<float> Random(Rng& rng, int64_t cols) const {
    std::vector<float> x(static_cast<size_t>(total_ * cols));
    for (float& value : x) value = rng.Normal();
    return x;
  }
  MatrixView<const float> View(const std::vector<float>& x) const {
    return {x.data(), total_, static_cast<int64_t>(x.size()) / std::max<int64_t>(total_, 1)};
  }

  /// Tokens of a head as they are read back: [0] from the pages, [1] as fp16.
  std::vector<float> ReadBack(const KvCodec& codec, bool key, size_t s, int head, bool exact) const {
    const int64_t d = setup_.head_dim;
    const MatrixView<const float> from = View(key ? k_ : v_);
    std::vector<float> read(static_cast<size_t>(lengths_[s] * d));
    std::vector<uint8_t> record(static_cast<size_t>(codec.bytes()));
    for (int64_t t = 0; t < lengths_[s]; ++t) {
      float* x = read.data() + t * d;
      std::copy_n(from.Row(begins_[s] + t) + head * d, d, x);
      if (key && !setup_.before_rope) Rotate(rope_, t, x);
      if (exact) {
        std::transform(x, x + d, x, [](float value) { return float{Half(value)}; });
      } else {
        uint8_t* to = record.data();
        codec.Encode({x, 1, d}, head, &to);
        const uint8_t* stored = to;
        codec.Decode(&stored, 1, head, {x, 1, d});
      }
      if (key && setup_.before_rope) Rotate(rope_, t, x);
    }
    return read;
  }

  void CheckHead(const KvCodec& key_codec, const KvCodec& value_codec, size_t s, int head,
                 const std::vector<float>& out) {
    const int64_t d = setup_.head_dim;
    const std::vector<float> keys[2] = {ReadBack(key_codec, true, s, head, false),
                                        ReadBack(key_codec, true, s, head, true)};
    const std::vector<float> values[2] = {ReadBack(value_codec, false, s, head, false),
                                          ReadBack(value_codec, false, s, head, true)};
    const double scale = 1 / std::sqrt(static_cast<double>(d));
    // Some early queries, the last ones, and others at distances that no block or page divides.
    for (int64_t p = 0; p < lengths_[s]; p += p < 4 || p >= lengths_[s] - 3 ? 1
                                              : lengths_[s] > 500           ? 97
                                                                            : 7) {
      std::vector<float> k;
      std::vector<float> v;
      for (int64_t t = 0; t <= p; ++t) {
        if (setup_.sliding > 0 && t <= p - setup_.sliding && t >= setup_.sinks) continue;
        const bool exact = t < setup_.sinks || t > p - setup_.window;
        k.insert(k.end(), keys[exact].begin() + t * d, keys[exact].begin() + (t + 1) * d);
        v.insert(v.end(), values[exact].begin() + t * d, values[exact].begin() + (t + 1) * d);
      }
      const int64_t n = static_cast<int64_t>(k.size()) / d;
      float largest_value = 0;
      for (const float value : v) largest_value = std::max(largest_value, std::fabs(value));
      for (int64_t g = 0; g < setup_.group; ++g) {
        const int64_t at = (begins_[s] + p) * width() + (head * setup_.group + g) * d;
        std::vector<float> q(q_.begin() + at, q_.begin() + at + d);
        Rotate(rope_, p, q.data());
        std::vector<float> wanted(static_cast<size_t>(d));
        reference::Attend(q, {k.data(), n, d}, {v.data(), n, d}, scale, wanted);
        // A score is a chain of d products, each rounded once; an error e of the scores moves a weight by a
        // factor of at most exp(2 e). Weights and sums add a chain of n, and exp a few units in the last
        // place.
        double magnitude = 0;
        for (int64_t t = 0; t < n; ++t) {
          double sum = 0;
          for (int64_t c = 0; c < d; ++c)
            sum += std::fabs(double{q[static_cast<size_t>(c)]} * k[static_cast<size_t>(t * d + c)]);
          magnitude = std::max(magnitude, sum * scale);
        }
        const double tolerance = largest_value * 0x1p-24 *
                                 (2.0 * static_cast<double>(d + 8) * magnitude + static_cast<double>(n + 16));
        for (int64_t c = 0; c < d; ++c) {
          ASSERT_NEAR(out[static_cast<size_t>(at + c)], wanted[static_cast<size_t>(c)], tolerance)
              << setup_ << " sequence " << s << " position " << p << " head " << head << "." << g
              << " channel " << c;
        }
      }
    }
  }

  Shape setup_;
  std::vector<int64_t> lengths_;
  RopeTable rope_;
  KvLayerSpec spec_;
  int64_t total_ = 0;
  std::vector<int64_t> begins_;
  std::vector<std::vector<int32_t>> pages_;
  std::unique_ptr<KvLayer> layer_;
  std::vector<float> q_, k_, v_;
};

/// One piece, chunks and token by token: all three equal the oracle.
void ExpectAllCutsMatch(const Shape& setup) {
  SCOPED_TRACE(testing::Message() << setup);
  for (const int64_t chunk : {setup.tokens, int64_t{33}, int64_t{1}}) {
    Rig rig(setup, {setup.tokens});
    rig.ExpectOracle(rig.Run(chunk));
  }
}

const char* const kFormats[] = {
    "fp32",      "fp16",     "bf16",           "int8-row",        "int8-g32",
    "int8-g128", "int4-g32", "int4-g128",      "int4-g64-sym",    "cq-4",
    "cq-2",      "cq-1",     "VQ<4,8,2>-head", "VQ<8,10,1>-head", "VQ<2,4,1>-head"};

TEST(KvLayer, EveryFormatMatchesTheOracle) {
  for (const char* format : kFormats) ExpectAllCutsMatch({.key = format, .value = format});
}

TEST(KvLayer, EveryFormatMatchesTheOracleWithSinksWindowAndKeysBeforeRope) {
  for (const char* format : kFormats) {
    ExpectAllCutsMatch({.key = format, .value = format, .sinks = 3, .window = 20, .before_rope = true});
  }
}

TEST(KvLayer, EveryGroupMatchesTheOracle) {
  for (const int group : {1, 2, 3, 5, 7, 16}) {
    for (const char* format : {"fp16", "int8-row", "int4-row", "cq-2"}) {
      ExpectAllCutsMatch({.key = format, .value = format, .group = group, .tokens = 70});
    }
  }
}

TEST(KvLayer, EveryHeadDimMatchesTheOracle) {
  for (const int head_dim : {8, 16, 64, 80, 96, 112, 128, 256}) {
    for (const char* format :
         {"fp32", "fp16", "bf16", "int8-row", "int8-g32", "int4-row", "int4-g32-sym", "cq-4", "cq-1"}) {
      ExpectAllCutsMatch({.key = format, .value = format, .kv_heads = 1, .head_dim = head_dim, .tokens = 70});
    }
  }
}

TEST(KvLayer, GroupsThatNoVectorDividesMatchTheOracle) {
  for (const int bits : {4, 8}) {
    for (const int group : {8, 20, 48}) {
      const std::string format =
          fmt::format(R"({{"name":"odd","kind":"int","bits":{},"scale":"group","group":{}}})", bits, group);
      ExpectAllCutsMatch({.key = format.c_str(), .value = format.c_str(), .head_dim = 80, .tokens = 70});
    }
  }
}

TEST(KvLayer, KeyAndValueFormatsAreIndependent) {
  ExpectAllCutsMatch({.key = "int8-row", .value = "cq-2", .sinks = 1, .window = 7});
  ExpectAllCutsMatch({.key = "cq-4", .value = "fp16", .before_rope = true});
  ExpectAllCutsMatch({.key = "VQ<3,8,1>-head", .value = "VQ<6,5,3>-head", .head_dim = 96});
  ExpectAllCutsMatch(
      {.key =
           R"({"name":"two","kind":"table","subvector":4,"entries":[300,17],"scope":{"kind":"head-channel"}})",
       .value = "VQ<16,8,1>-head"});
}

TEST(KvLayer, SlidingWindowSinksAndRecentWindowMatchTheOracle) {
  for (const int sliding : {1, 16, 70}) {
    for (const int sinks : {0, 4}) {
      for (const int window : {0, 1, 40, 1000}) {
        ExpectAllCutsMatch(
            {.key = "int4-row", .value = "cq-1", .sinks = sinks, .window = window, .sliding = sliding});
      }
    }
  }
}

TEST(KvLayer, EveryPageSizeMatchesTheOracle) {
  for (const int page : {16, 24, 64, 128}) {
    ExpectAllCutsMatch({.key = "int8-row", .value = "cq-2", .page_tokens = page, .sinks = 2, .window = 17});
  }
}

TEST(KvLayer, LongContextsOverSeveralPiecesMatchTheOracle) {
  for (const char* format : {"fp16", "int4-row", "cq-4", "VQ<8,10,1>-head"}) {
    Rig rig({.key = format, .value = format, .kv_heads = 1, .group = 3, .sinks = 2, .window = 30}, {2600});
    std::vector<float> out = rig.Run(2599);  // the last token is a decode step over two pieces
    rig.ExpectOracle(out);
  }
}

TEST(KvLayer, RowsOfDifferentLengthsMatchTheOracle) {
  for (const char* format : {"fp16", "int8-row", "cq-2"}) {
    for (const int64_t chunk : {1, 50, 200}) {
      Rig rig({.key = format, .value = format, .page_tokens = 16, .sinks = 1, .window = 9},
              {130, 0, 1, 17, 64});
      rig.ExpectOracle(rig.Run(chunk));
    }
  }
}

TEST(KvLayer, DecodeIsBitEqualInAnyBatchAndAtAnyThreadCount) {
  const int before = Threads();
  for (const char* format : {"fp16", "int4-g32", "cq-2"}) {
    const Shape setup{.key = format, .value = format, .sinks = 1, .window = 9};
    SetThreads(1);
    Rig alone(setup, {130});
    const std::vector<float> wanted = alone.Run(1);
    SetThreads(3);
    Rig batch(setup, {130, 77});
    std::copy(alone.q().begin(), alone.q().end(), batch.q().begin());
    std::copy(alone.k().begin(), alone.k().end(), batch.k().begin());
    std::copy(alone.v().begin(), alone.v().end(), batch.v().begin());
    const std::vector<float> out = batch.Run(1);
    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), out.begin())) << format;
  }
  SetThreads(before);
}

TEST(KvLayer, APromptIsBitEqualHoweverItIsCutIntoChunks) {
  for (const char* format : {"fp16", "int4-g32", "cq-2"}) {
    const Shape setup{.key = format, .value = format, .sinks = 2, .window = 9, .sliding = 100, .tokens = 190};
    Rig whole(setup, {190});
    const std::vector<float> wanted = whole.Run(190);
    for (const int64_t chunk : {5, 38, 95}) {
      Rig cut(setup, {190});
      EXPECT_EQ(cut.Run(chunk), wanted) << format << " in chunks of " << chunk;
    }
  }
}

TEST(KvLayer, LogitsOfSixtyThousandNeitherOverflowNorLoseTheLargest) {
  for (const char* format : {"fp16", "int8-row", "int4-row"}) {
    for (const int64_t chunk : {1, 70}) {
      Rig rig({.key = format, .value = format, .head_dim = 16, .tokens = 70}, {70});
      for (float& value : rig.q()) value = std::copysign(1500.0f, value);
      for (float& value : rig.k()) value = std::copysign(10.0f, value);  // scores up to 16 * 15000 / 4 = 6e4
      for (const float value : rig.Run(chunk)) ASSERT_TRUE(std::isfinite(value)) << format;
    }
  }
}

TEST(KvLayer, ANanReachesTheQueriesThatSeeItAndNoOthers) {
  for (const char* format : {"fp32", "fp16", "int8-row", "int4-g32"}) {
    for (const int64_t chunk : {1, 70}) {
      Rig rig({.key = format, .value = format, .kv_heads = 1, .group = 1, .tokens = 70}, {70});
      rig.k()[40 * 64 + 5] = std::nanf("");
      const std::vector<float> out = rig.Run(chunk);
      for (int64_t t = 0; t < 70; ++t)
        EXPECT_EQ(std::isnan(out[static_cast<size_t>(t * 64)]), t >= 40) << format << t;
    }
  }
}

TEST(KvLayer, ASlotThatIsUsedAgainForgetsItsOldTokens) {
  const Shape setup{.key = "int4-row", .value = "cq-2", .sinks = 4, .window = 30};
  Rig rig(setup, {90});
  rig.Run(13);
  for (std::vector<float>* x : {&rig.q(), &rig.k(), &rig.v()}) std::reverse(x->begin(), x->end());
  rig.ExpectOracle(rig.Run(13));
}

TEST(KvLayer, CountsTheBytesOfATokenAndOfCodebooks) {
  const auto bytes = [](const char* format) {
    return Rig({.key = format, .value = format, .kv_heads = 2, .head_dim = 128}, {1})
        .layer()
        .bytes_per_token();
  };
  EXPECT_EQ(bytes("fp32"), 2 * 2 * 512);
  EXPECT_EQ(bytes("fp16"), 2 * 2 * 256);
  EXPECT_EQ(bytes("int8-row"), 2 * 2 * (128 + 4));
  EXPECT_EQ(bytes("int4-g64"), 2 * 2 * (64 + 8));
  EXPECT_EQ(bytes("int4-g64-sym"), 2 * 2 * (64 + 4));
  EXPECT_EQ(bytes("cq-4"), 2 * 2 * 64);
  EXPECT_EQ(bytes("cq-1"), 2 * 2 * 16);
  const Rig rig({.key = "fp16", .value = "cq-2", .kv_heads = 2, .head_dim = 128, .sinks = 1, .window = 3},
                {1});
  EXPECT_EQ(rig.layer().fixed_bytes(), 2 * 2 * 128 * 256 + (1 + 3) * 2 * 2 * 128 * 2);
}

}  // namespace
}  // namespace vqllm::cpu
