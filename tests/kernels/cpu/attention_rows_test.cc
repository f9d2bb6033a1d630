#include "kernels/cpu/attention_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/attention_scalar.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/rope.h"
#include "vq/base/half.h"
#include "vq/base/rng.h"

namespace vqllm::cpu {
namespace {

/// Rows of small integers: every sum below 2^24 is exact in any order.
struct Rows {
  RowLayout layout;
  std::vector<uint8_t> memory;
  std::vector<const uint8_t*> addresses;

  Rows(RowKind kind, int64_t dim, int64_t group, bool symmetric, int64_t n) {
    const bool integer = kind == RowKind::kInt8 || kind == RowKind::kInt4;
    layout.kind = kind;
    layout.dim = dim;
    layout.group = integer ? group : 0;
    layout.symmetric = symmetric;
    const int64_t elements = kind == RowKind::kF32    ? 4 * dim
                             : kind == RowKind::kInt8 ? dim
                             : kind == RowKind::kInt4 ? dim / 2
                                                      : 2 * dim;
    layout.numbers = elements;
    layout.bytes = elements + (integer ? (dim + group - 1) / group * (symmetric ? 2 : 4) : 0);
    memory.resize(static_cast<size_t>(n * layout.bytes));
    Rng rng(static_cast<uint64_t>(dim));
    for (int64_t t = 0; t < n; ++t) {
      uint8_t* row = memory.data() + t * layout.bytes;
      if (integer) {
        for (int64_t i = 0; i < elements; ++i) row[i] = static_cast<uint8_t>(rng.Below(256));
        for (int64_t i = elements; i < layout.bytes; i += 2)
          Put(row + i, Half(static_cast<float>(rng.Below(5))).bits);
      } else {
        for (int64_t c = 0; c < dim; ++c) {
          const float value = static_cast<float>(rng.Below(17)) - 8;
          if (kind == RowKind::kF32) std::memcpy(row + 4 * c, &value, 4);
          if (kind == RowKind::kF16) Put(row + 2 * c, FloatToHalfBits(value));
          if (kind == RowKind::kBF16) Put(row + 2 * c, FloatToBFloat16Bits(value));
        }
      }
    }
    for (int64_t t = 0; t < n + kRowsAhead; ++t)
      addresses.push_back(memory.data() + std::min(t, n - 1) * layout.bytes);
  }
  static void Put(uint8_t* to, uint16_t bits) { std::memcpy(to, &bits, 2); }
};

std::vector<float> Integers(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = static_cast<float>(rng.Below(7)) - 3;
  return x;
}

TEST(AttentionRows, ScoresAndValuesEqualTheScalarLoopsBitForBit) {
  for (const RowKind kind : {RowKind::kF32, RowKind::kF16, RowKind::kBF16, RowKind::kInt8, RowKind::kInt4}) {
    for (const int64_t dim : {32, 64, 96, 128, 256}) {
      for (const int64_t group : {int64_t{16}, int64_t{48}, dim}) {
        for (const bool symmetric : {false, true}) {
          for (const int64_t n : {1, 2, 5, 67}) {
            for (const int heads : {1, 2, 3, 4}) {
              const Rows rows(kind, dim, group, symmetric, n);
              std::vector<float> q = Integers(kQuad * dim, 3);
              std::fill(q.begin() + heads * dim, q.end(), 0.0f);
              const QueryQuad quad{.heads = heads, .q = q.data()};
              std::vector<float> scores(static_cast<size_t>(n * kQuad));
              std::vector<float> wanted = scores;
              RowScores(rows.layout, quad, rows.addresses.data(), n, scores.data());
              scalar::RowScores(rows.layout, quad, rows.addresses.data(), n, wanted.data());
              ASSERT_EQ(scores, wanted) << static_cast<int>(kind) << " " << dim << " " << group << " " << n;

              std::vector<float> weights = Integers(n * kQuad, 4);
              for (size_t i = 0; i < weights.size(); ++i) {
                if (static_cast<int>(i % kQuad) >= heads) weights[i] = 0;
              }
              std::vector<float> out = Integers(kQuad * dim, 5);
              std::vector<float> sums = out;
              RowValues(rows.layout, weights.data(), heads, rows.addresses.data(), n, out.data());
              scalar::RowValues(rows.layout, weights.data(), heads, rows.addresses.data(), n, sums.data());
              ASSERT_EQ(out, sums) << static_cast<int>(kind) << " " << dim << " " << group << " " << n;
            }
          }
        }
      }
    }
  }
}

TEST(AttentionRows, SoftmaxTilesMatchTheScalarLoop) {
  Rng rng(1);
  float largest[2][kQuad];
  float sums[2][kQuad] = {};
  std::fill_n(largest[0], 2 * kQuad, -std::numeric_limits<float>::infinity());
  for (const int64_t n : {1, 3, 4, 7, 64, 100}) {
    std::vector<float> scores(static_cast<size_t>(n * kQuad));
    for (float& score : scores) score = 20 * rng.Normal();
    scores[0] = -1e5f;
    std::vector<float> wanted = scores;
    float keep[2][kQuad];
    SoftmaxTile(scores.data(), n, largest[0], sums[0], keep[0]);
    scalar::SoftmaxTile(wanted.data(), n, largest[1], sums[1], keep[1]);
    for (size_t i = 0; i < scores.size(); ++i)
      EXPECT_NEAR(scores[i], wanted[i], 4 * 0x1p-24 * wanted[i] + 1e-37);
    for (size_t h = 0; h < kQuad; ++h) {
      EXPECT_EQ(largest[0][h], largest[1][h]);
      EXPECT_NEAR(keep[0][h], keep[1][h], 4 * 0x1p-24);
      EXPECT_NEAR(sums[0][h], sums[1][h], sums[1][h] * 0x1p-24 * 200);
    }
  }
}

TEST(Rope, RotatesAsTheReferenceAndLeavesTheOtherChannels) {
  Rng rng(2);
  for (const int dim : {2, 10, 16, 64, 80}) {
    RopeTable rope;
    rope.dim = dim;
    for (int i = 0; i < 3 * dim / 2; ++i) {
      rope.cos.push_back(rng.Normal());
      rope.sin.push_back(rng.Normal());
    }
    std::vector<float> x(90);
    for (float& value : x) value = rng.Normal();
    std::vector<float> wanted = x;
    Rotate(rope, 2, x.data());
    reference::Rotate(rope, 2, wanted.data());
    for (size_t c = 0; c < x.size(); ++c) {
      EXPECT_NEAR(x[c], wanted[c], static_cast<int>(c) < dim ? 60 * 0x1p-24 : 0) << dim;
    }
  }
}

}  // namespace
}  // namespace vqllm::cpu
