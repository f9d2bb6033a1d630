#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "runtime/perplexity.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

std::vector<int32_t> Text(int size) {
  std::vector<int32_t> text(static_cast<size_t>(size));
  std::iota(text.begin(), text.end(), 100);
  return text;
}

TEST(StridedWindows, ScoreEveryTokenOnceWithItsPredecessorInFront) {
  for (const int32_t bos : {-1, 7}) {
    for (const int size : {2, 3, 15, 16, 17, 100}) {
      for (const int64_t context : {1, 2, 16, 64}) {
        for (const int64_t stride : {int64_t{1}, (context + 1) / 2, context}) {
          const std::vector<int32_t> text = Text(size);
          std::vector<int32_t> scored;
          for (const ScoredWindow& window : StridedWindows(text, bos, context, stride)) {
            ASSERT_LE(static_cast<int64_t>(window.inputs.size()), context);
            ASSERT_LE(window.targets.size(), window.inputs.size());
            const size_t offset = window.inputs.size() - window.targets.size();
            for (size_t i = 0; i < window.targets.size(); ++i) {
              const int32_t before = window.inputs[offset + i];
              const bool first = offset + i == 0;
              EXPECT_TRUE(before == window.targets[i] - 1 || (first && before == bos));
              if (bos >= 0) {
                EXPECT_EQ(window.inputs[0], bos);
              }
            }
            scored.insert(scored.end(), window.targets.begin(), window.targets.end());
          }
          const std::vector<int32_t> wanted(text.begin() + (bos >= 0 ? 0 : 1), text.end());
          EXPECT_EQ(scored, wanted) << "bos " << bos << " size " << size << " ctx " << context << " stride "
                                    << stride;
        }
      }
    }
  }
}

TEST(StridedWindows, RefuseTextsWithNothingToScore) {
  EXPECT_THROW(StridedWindows({}, 1, 8, 8), Error);
  EXPECT_THROW(StridedWindows(Text(1), -1, 8, 8), Error);
  EXPECT_EQ(StridedWindows(Text(1), 1, 8, 8).size(), 1u);
  EXPECT_THROW(StridedWindows(Text(9), 1, 8, 9), Error);
  EXPECT_THROW(StridedWindows(Text(9), 1, 0, 1), Error);
}

TEST(LlamaCppWindows, ScoreTheSecondHalfOfWholeChunksThatBeginWithBos) {
  const std::vector<ScoredWindow> windows = LlamaCppWindows(Text(20), 7, 8, 0);
  ASSERT_EQ(windows.size(), 2u);  // 21 tokens with BOS: two whole chunks
  EXPECT_EQ(windows[0].inputs, (std::vector<int32_t>{7, 100, 101, 102, 103, 104, 105}));
  EXPECT_EQ(windows[0].targets, (std::vector<int32_t>{104, 105, 106}));
  EXPECT_EQ(windows[1].inputs, (std::vector<int32_t>{7, 108, 109, 110, 111, 112, 113}));
  EXPECT_EQ(windows[1].targets, (std::vector<int32_t>{112, 113, 114}));
  EXPECT_EQ(LlamaCppWindows(Text(20), 7, 8, 1).size(), 1u);
  EXPECT_THROW(LlamaCppWindows(Text(6), 7, 8, 0), Error);
}

TEST(Perplexity, OfUniformLogitsIsTheVocabulary) {  // case S05
  PerplexitySum sum;
  for (int i = 0; i < 1000; ++i) sum.Add(NegativeLogLikelihood(std::vector<float>(259, 3.25f), i % 259));
  EXPECT_NEAR(sum.perplexity(), 259, 259e-6);
  EXPECT_NEAR(sum.error(), 0, 1e-3);
  EXPECT_EQ(sum.tokens(), 1000);
}

TEST(Perplexity, RefusesNan) {
  EXPECT_THROW(NegativeLogLikelihood(std::vector<float>{0, std::nanf(""), 1}, 0), Error);
  EXPECT_THROW(NegativeLogLikelihood(std::vector<float>{std::nanf(""), 0, 1}, 1), Error);
}

TEST(Perplexity, ErrorIsThatOfTheMean) {
  PerplexitySum sum;
  for (const double value : {1.0, 2.0, 3.0, 4.0}) sum.Add(value);
  EXPECT_NEAR(sum.perplexity(), std::exp(2.5), 1e-12);
  EXPECT_NEAR(sum.error(), std::exp(2.5) * std::sqrt(1.25 / 3), 1e-12);
}

}  // namespace
}  // namespace vqllm
