#include "vq/base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace vqllm {
namespace {

class ParallelFor : public testing::Test {
 protected:
  void TearDown() override { SetThreads(before_); }
  int before_ = Threads();
};

TEST_F(ParallelFor, CoversEveryItemOnceInTheSamePiecesAtAnyThreadCount) {
  for (const int threads : {1, 2, 5}) {
    SetThreads(threads);
    for (const int64_t count : {0, 1, 7, 8, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      std::atomic<int64_t> pieces{0};
      vqllm::ParallelFor(count, 7, [&](int64_t begin, int64_t end) {
        EXPECT_EQ(begin % 7, 0);
        EXPECT_EQ(end, std::min<int64_t>(begin + 7, count));
        ++pieces;
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      });
      for (const auto& hit : hits) EXPECT_EQ(hit, 1);
      EXPECT_EQ(pieces, (count + 6) / 7);
    }
  }
}

TEST_F(ParallelFor, ANestedCallRunsInPlace) {
  SetThreads(3);
  std::atomic<int64_t> sum{0};
  vqllm::ParallelFor(10, 1, [&](int64_t outer, int64_t) {
    vqllm::ParallelFor(10, 2, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sum += outer * 10 + i;
    });
  });
  EXPECT_EQ(sum, 99 * 100 / 2);
}

TEST_F(ParallelFor, ThrowsTheExceptionOfABodyAndGoesOnWorking) {
  SetThreads(2);
  EXPECT_THROW(vqllm::ParallelFor(100, 1,
                                  [](int64_t begin, int64_t) {
                                    if (begin == 42) throw std::runtime_error("42");
                                  }),
               std::runtime_error);
  std::atomic<int> ran{0};
  vqllm::ParallelFor(100, 1, [&](int64_t, int64_t) { ++ran; });
  EXPECT_EQ(ran, 100);
}

TEST_F(ParallelFor, NoPieceOfAJobIsLostOrTakenForOneOfTheNext) {
  // More threads than cores and jobs of a microsecond: workers wake late, in the middle of some later job.
  SetThreads(7);
  for (int64_t job = 0; job < 20000; ++job) {
    const int64_t count = 2 + job % 13;
    std::atomic<int64_t> sum{0};
    vqllm::ParallelFor(count, 1, [&](int64_t begin, int64_t) { sum += job * 100 + begin; });
    ASSERT_EQ(sum, count * job * 100 + count * (count - 1) / 2);
  }
}

}  // namespace
}  // namespace vqllm
