#include "vq/packing.h"

#include <gtest/gtest.h>

#include "vq/base/rng.h"

namespace vqllm {
namespace {

class EveryWidth : public testing::TestWithParam<int> {};

/// What the layout says, bit by bit.
uint32_t Oracle(const PackedCodes& codes, int64_t row, int64_t index) {
  uint32_t code = 0;
  for (int b = 0; b < codes.bits(); ++b) {
    const int64_t bit = index * codes.bits() + b;
    const uint32_t word = codes.words()[static_cast<size_t>(row * codes.row_words() + bit / 32)];
    code |= (word >> (bit % 32) & 1) << b;
  }
  return code;
}

TEST_P(EveryWidth, RowsSurviveAndLieAsDocumented) {
  const int bits = GetParam();
  Rng rng(static_cast<uint64_t>(bits));
  for (const int64_t count : {1, 2, 3, 5, 7, 10, 31, 32, 33, 64, 65, 127, 1000}) {
    PackedCodes codes(3, count, bits);
    ASSERT_EQ(codes.row_words(), (count * bits + 31) / 32);
    std::vector<std::vector<uint16_t>> expected(3, std::vector<uint16_t>(static_cast<size_t>(count)));
    for (int64_t r = 0; r < 3; ++r) {
      for (uint16_t& code : expected[static_cast<size_t>(r)]) {
        code = static_cast<uint16_t>(rng.Below(4) == 0 ? (1u << bits) - 1 : rng.Below(uint64_t{1} << bits));
      }
      codes.PackRow(r, expected[static_cast<size_t>(r)].data());
    }
    for (int64_t r = 0; r < 3; ++r) {
      std::vector<uint16_t> row(static_cast<size_t>(count));
      codes.UnpackRow(r, 0, count, row.data());
      ASSERT_EQ(row, expected[static_cast<size_t>(r)]);
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(codes.Get(r, i), row[static_cast<size_t>(i)]);
        ASSERT_EQ(Oracle(codes, r, i), row[static_cast<size_t>(i)]);
      }
      for (int64_t begin = 0; begin < count; begin += 1 + count / 7) {
        std::vector<uint16_t> part(static_cast<size_t>(count - begin));
        codes.UnpackRow(r, begin, count - begin, part.data());
        ASSERT_TRUE(std::equal(part.begin(), part.end(), row.begin() + begin));
      }
    }
  }
}

TEST_P(EveryWidth, SetTouchesNothingElse) {
  const int bits = GetParam();
  const uint32_t top = (1u << bits) - 1;
  for (const uint32_t background : {0u, top}) {
    PackedCodes codes(2, 67, bits);
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t i = 0; i < 67; ++i) codes.Set(r, i, background);
    }
    codes.Set(1, 33, top - background);
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t i = 0; i < 67; ++i)
        ASSERT_EQ(codes.Get(r, i), r == 1 && i == 33 ? top - background : background) << r << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bits, EveryWidth, testing::Range(1, 17));

// K06: 64 codes of 3 bits fill 6 words; a count derived from "10 codes a word" would say 7.
TEST(PackedCodes, TakesNoMoreWordsThanTheBitsNeed) {
  EXPECT_EQ(PackedCodes(1, 64, 3).row_words(), 6);
  EXPECT_EQ(PackedCodes(1, 0, 3).row_words(), 0);
  EXPECT_EQ(PackedCodes(5, 32, 10).words().size(), 50u);
}

TEST(PackedCodes, BitsForCountsRefinedPowers) {
  const int64_t entries[] = {1, 2, 3, 4, 5, 8, 9, 256, 257, 512, 1000, 1024, 4096, 65535, 65536};
  const int bits[] = {1, 1, 2, 2, 3, 3, 4, 8, 9, 9, 10, 10, 12, 16, 16};
  for (size_t i = 0; i < std::size(entries); ++i) EXPECT_EQ(BitsFor(entries[i]), bits[i]) << entries[i];
}

TEST(PackedCodesDeathTest, ACodeThatDoesNotFitIsOurFault) {
  PackedCodes codes(1, 4, 3);
  EXPECT_DEATH(codes.Set(0, 0, 8), "");
  EXPECT_DEATH(codes.Set(0, 4, 0), "");
  EXPECT_DEATH(PackedCodes(1, 1, 17), "");
}

}  // namespace
}  // namespace vqllm
