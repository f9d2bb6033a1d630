#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/kv_codec.h"
#include "vq/base/rng.h"

namespace vqllm::cpu {
namespace {

std::vector<float> RoundTrip(const KvCodec& codec, int head, const std::vector<float>& x) {
  std::vector<uint8_t> record(static_cast<size_t>(codec.bytes() + 8), 0xa5);
  const int64_t d = static_cast<int64_t>(x.size());
  uint8_t* to = record.data();
  codec.Encode({x.data(), 1, d}, head, &to);
  for (size_t i = static_cast<size_t>(codec.bytes()); i < record.size(); ++i) EXPECT_EQ(record[i], 0xa5);
  std::vector<float> out(x.size());
  const uint8_t* from = to;
  codec.Decode(&from, 1, head, {out.data(), 1, d});
  return out;
}

std::unique_ptr<KvCodec> Codec(const char* format, int head_dim) {
  KvSide side;
  side.format = ParseFormat(format);
  return MakeKvCodec(side, 1, head_dim);
}

TEST(KvCodec, DenseKeepsWhatItsTypeHolds) {
  Rng rng(1);
  std::vector<float> x(80);
  for (float& value : x) value = static_cast<float>(rng.Below(255)) - 127;
  x[3] = -0.0f;
  for (const char* format : {"fp32", "fp16", "bf16"})
    EXPECT_EQ(RoundTrip(*Codec(format, 80), 0, x), x) << format;
  x[5] = 1.00001f;
  EXPECT_EQ(RoundTrip(*Codec("fp32", 80), 0, x), x);
}

TEST(KvCodec, IntegersStayWithinHalfAStep) {
  Rng rng(2);
  for (const char* name : {"int8-row", "int8-g32", "int4-g32", "int4-g64", "int4-g32-sym", "int4-row"}) {
    const Format format = ParseFormat(name);
    for (const int head_dim : {8, 64, 80, 112}) {
      for (const float spread : {1e-3f, 1.0f, 300.0f}) {
        for (const float shift : {0.0f, 5.0f}) {
          std::vector<float> x(static_cast<size_t>(head_dim));
          for (float& value : x) value = spread * (rng.Normal() + shift);
          const std::vector<float> out = RoundTrip(*Codec(name, head_dim), 0, x);
          const int64_t group = format.group > 0 ? std::min(format.group, head_dim) : head_dim;
          for (int64_t begin = 0; begin < head_dim; begin += group) {
            const auto first = x.begin() + begin;
            const auto last = x.begin() + std::min<int64_t>(begin + group, head_dim);
            const auto [low, high] = std::minmax_element(first, last);
            const float levels = static_cast<float>((1 << format.bits) - 1);
            const float largest = std::max(std::fabs(*low), std::fabs(*high));
            const float step = format.symmetric ? largest / std::floor(levels / 2) : (*high - *low) / levels;
            // Half a step; both numbers are rounded to fp16, the scale's error counting up to `levels` times.
            const float bound = step / 2 + (largest + step * levels) * 0x1p-11f + 0x1p-24f * levels;
            for (auto at = first; at != last; ++at) {
              EXPECT_NEAR(out[static_cast<size_t>(at - x.begin())], *at, bound) << name << " " << head_dim;
            }
          }
        }
      }
    }
  }
}

TEST(KvCodec, IntegersOnTheGridAreExact) {
  Rng rng(3);
  for (const char* name : {"int8-row", "int4-g32", "int4-g32-sym"}) {
    const Format format = ParseFormat(name);
    const int levels = (1 << format.bits) - 1;
    std::vector<float> x(64);
    for (float& value : x)
      value = static_cast<float>(rng.Below(static_cast<uint64_t>(levels))) - static_cast<float>(levels / 2);
    for (size_t begin = 0; begin < x.size(); begin += 32) {
      x[begin] = format.symmetric ? static_cast<float>(levels / 2) : -static_cast<float>(levels / 2 + 1);
      x[begin + 9] = static_cast<float>(levels / 2);
    }
    EXPECT_EQ(RoundTrip(*Codec(name, 64), 0, x), x) << name;
  }
}

TEST(KvCodec, IntegersClampToTheRangeOfHalvesAndPassNanOn) {
  for (const char* name : {"int8-row", "int4-g32", "int4-g32-sym"}) {
    std::vector<float> x(64, 1e9f);
    x[0] = -1e9f;
    for (const float value : RoundTrip(*Codec(name, 64), 0, x)) EXPECT_TRUE(std::isfinite(value)) << name;
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      x.assign(64, 1.0f);
      x[63] = bad;
      const std::vector<float> out = RoundTrip(*Codec(name, 64), 0, x);
      EXPECT_TRUE(std::isnan(out[63])) << name;
    }
    x.assign(64, 0.0f);
    EXPECT_EQ(RoundTrip(*Codec(name, 64), 0, x), x) << name;
  }
}

struct TableSetup {
  int v;
  std::vector<int> entries;
  int head_dim;
};

KvSide TableSide(const TableSetup& setup, int kv_heads, Rng& rng, bool integers) {
  KvSide side;
  side.format.name = "table";
  side.format.kind = FormatKind::kTable;
  side.format.subvector = setup.v;
  side.format.entries = setup.entries;
  side.format.scope.kind = ScopeKind::kHeadChannel;
  for (const int entries : setup.entries) {
    std::vector<Half>& book = side.codebooks.emplace_back();
    for (int64_t i = 0; i < int64_t{kv_heads} * setup.head_dim * entries; ++i) {
      book.push_back(Half(integers ? static_cast<float>(rng.Below(5)) - 2 : rng.Normal()));
    }
  }
  return side;
}

/// Greedy over the stages: the entry of least distance in double, ties to the lowest index.
std::vector<float> NearestByHand(const KvSide& side, int head, std::vector<float> rest) {
  const int64_t v = side.format.subvector;
  const int64_t subvectors = static_cast<int64_t>(rest.size()) / v;
  std::vector<float> sum(rest.size());
  for (size_t stage = 0; stage < side.codebooks.size(); ++stage) {
    const int64_t entries = side.format.entries[stage];
    for (int64_t s = 0; s < subvectors; ++s) {
      const Half* book = side.codebooks[stage].data() + (head * subvectors + s) * entries * v;
      int64_t best = 0;
      double least = std::numeric_limits<double>::infinity();
      for (int64_t e = 0; e < entries; ++e) {
        double distance = 0;
        for (int64_t i = 0; i < v; ++i) {
          const double difference = double{rest[static_cast<size_t>(s * v + i)]} - float{book[e * v + i]};
          distance += difference * difference;
        }
        if (distance < least) least = distance, best = e;
      }
      for (int64_t i = 0; i < v; ++i) {
        sum[static_cast<size_t>(s * v + i)] += book[best * v + i];
        rest[static_cast<size_t>(s * v + i)] -= book[best * v + i];
      }
    }
  }
  return sum;
}

TEST(KvCodec, TablesTakeTheNearestEntryOfEachStage) {
  Rng rng(4);
  for (const TableSetup& setup : {TableSetup{2, {256}, 64},
                                  {4, {256}, 64},
                                  {8, {256}, 64},
                                  {4, {16, 16}, 8},
                                  {3, {300}, 96},
                                  {16, {17, 5, 2}, 80},
                                  {1, {16}, 16}}) {
    const KvSide side = TableSide(setup, 3, rng, false);
    const auto codec = MakeKvCodec(side, 3, setup.head_dim);
    for (int head = 0; head < 3; ++head) {
      std::vector<float> x(static_cast<size_t>(setup.head_dim));
      for (float& value : x) value = rng.Normal();
      EXPECT_EQ(RoundTrip(*codec, head, x), NearestByHand(side, head, x))
          << setup.v << " " << setup.entries[0];
    }
  }
}

TEST(KvCodec, TablesBreakTiesToTheLowestEntry) {
  Rng rng(5);
  // 200 entries of two integers in [-2, 2] and points half way between them: most points are equally far from
  // several.
  const TableSetup setup{2, {200}, 16};
  const KvSide side = TableSide(setup, 1, rng, true);
  const auto codec = MakeKvCodec(side, 1, 16);
  std::vector<uint8_t> record(static_cast<size_t>(codec->bytes()));
  for (int round = 0; round < 50; ++round) {
    std::vector<float> x(16);
    for (float& value : x) value = static_cast<float>(rng.Below(9)) / 2 - 2;
    uint8_t* to = record.data();
    codec->Encode({x.data(), 1, 16}, 0, &to);
    for (size_t s = 0; s < 8; ++s) {
      const Half* book = side.codebooks[0].data() + s * 400;
      const auto distance = [&](size_t e) {
        const float a = x[2 * s] - book[2 * e];
        const float b = x[2 * s + 1] - book[2 * e + 1];
        return a * a + b * b;
      };
      size_t best = 0;
      for (size_t e = 1; e < 200; ++e) {
        if (distance(e) < distance(best)) best = e;
      }
      EXPECT_EQ(record[s], best);
    }
  }
}

TEST(KvCodec, TablesStoreNanAsIfItWereZero) {
  Rng rng(6);
  const KvSide side = TableSide({4, {256}, 16}, 1, rng, false);
  const auto codec = MakeKvCodec(side, 1, 16);
  std::vector<float> x(16, 1.0f);
  x[2] = std::nanf("");
  x[9] = -std::numeric_limits<float>::infinity();
  std::vector<float> zeroed = x;
  zeroed[2] = zeroed[9] = 0;
  EXPECT_EQ(RoundTrip(*codec, 0, x), RoundTrip(*codec, 0, zeroed));
}

TEST(KvCodec, ManyTokensAtOnceEncodeAsOneByOne) {
  Rng rng(7);
  const KvSide side = TableSide({4, {256, 16}, 32}, 2, rng, false);
  const auto codec = MakeKvCodec(side, 2, 32);
  std::vector<float> x(11 * 40);
  for (float& value : x) value = rng.Normal();
  std::vector<uint8_t> together(static_cast<size_t>(11 * codec->bytes()));
  std::vector<uint8_t> alone(together.size());
  std::vector<uint8_t*> records;
  for (int64_t t = 0; t < 11; ++t) {
    records.push_back(together.data() + t * codec->bytes());
    uint8_t* to = alone.data() + t * codec->bytes();
    codec->Encode({x.data() + t * 40, 1, 32, 40}, 1, &to);
  }
  codec->Encode({x.data(), 11, 32, 40}, 1, records.data());
  EXPECT_EQ(together, alone);
}

}  // namespace
}  // namespace vqllm::cpu
