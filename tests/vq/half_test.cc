#include "vq/base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace vqllm {
namespace {

TEST(Half, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = HalfBitsToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(HalfBitsToFloat(FloatToHalfBits(value))));
    } else {
      ASSERT_EQ(FloatToHalfBits(value), bits) << value;
    }
  }
}

TEST(Half, RoundsHalfwayToEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = HalfBitsToFloat(static_cast<uint16_t>(bits));
    const float high = HalfBitsToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;  // exact: one more bit than a half holds
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(FloatToHalfBits(middle), even);
    ASSERT_EQ(FloatToHalfBits(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(FloatToHalfBits(std::nextafter(middle, 1e9f)), bits + 1);
    ASSERT_EQ(FloatToHalfBits(-middle), even | 0x8000u);
  }
}

TEST(Half, OverflowGoesToInfinityAtHalfAStepAboveTheLargest) {
  EXPECT_EQ(FloatToHalfBits(65519.99f), 0x7bff);
  EXPECT_EQ(FloatToHalfBits(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalfBits(-std::numeric_limits<float>::infinity()), 0xfc00);
}

TEST(BFloat16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(FloatToBFloat16Bits(1.0f), 0x3f80);
  EXPECT_EQ(FloatToBFloat16Bits(1.00390625f), 0x3f80);  // halfway between 1 and 1 + 2^-7: to even
  EXPECT_EQ(FloatToBFloat16Bits(1.01171875f), 0x3f82);  // halfway, to even upwards
  EXPECT_TRUE(std::isnan(BFloat16BitsToFloat(FloatToBFloat16Bits(std::nanf("")))));
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = BFloat16BitsToFloat(static_cast<uint16_t>(bits));
    if (!std::isnan(value)) {
      ASSERT_EQ(FloatToBFloat16Bits(value), bits);
    }
  }
}

}  // namespace
}  // namespace vqllm
