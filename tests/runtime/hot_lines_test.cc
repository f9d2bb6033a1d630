#include "runtime/hot_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace vqllm {
namespace {

constexpr const char* kSource = "first\n  second\n\n\tfourth";

ptx::LineCount Count(int line, const std::string& file, uint64_t instructions, uint64_t sectors,
                     uint64_t wavefronts) {
  return {100, line, file, "mov.u32 %r1, %r2;", instructions, 32 * instructions, sectors, wavefronts};
}

TEST(HotLines, PtxLinesAddUpByTheLineOfTheFile) {
  const std::vector<LineCost> lines =
      SumByLine({Count(4, "/tmp/k.cu", 5, 7, 0), Count(2, "k.cu", 1, 0, 2), Count(4, "k.cu", 10, 1, 3),
                 Count(0, "k.cu", 2, 0, 0), Count(2, "other.h", 4, 0, 0), Count(5, "k.cu", 8, 0, 0),
                 Count(2, "/tmp/notk.cu", 16, 0, 0)},
                kSource, "k.cu");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].line, 0);  // no line, another file, behind the end, a longer name
  EXPECT_EQ(lines[0].warp_instructions, 2u + 4 + 8 + 16);
  EXPECT_EQ(lines[1].line, 2);
  EXPECT_EQ(lines[1].text, "second");
  EXPECT_EQ(lines[1].wavefronts, 2u);
  EXPECT_EQ(lines[2].line, 4);
  EXPECT_EQ(lines[2].text, "fourth");
  EXPECT_EQ(lines[2].warp_instructions, 15u);
  EXPECT_EQ(lines[2].thread_instructions, 480u);
  EXPECT_EQ(lines[2].sectors, 8u);
  EXPECT_EQ(lines[2].wavefronts, 3u);
}

TEST(HotLines, TheLargestShareOfAnyCostComesFirst) {
  const std::vector<LineCost> lines = SumByLine({Count(1, "k.cu", 60, 0, 0), Count(2, "k.cu", 10, 9, 0),
                                                 Count(3, "k.cu", 10, 1, 0), Count(4, "k.cu", 20, 0, 0)},
                                                kSource, "k.cu");
  const std::string table = HotLines(lines, 3);
  const size_t second = table.find("second");
  const size_t first = table.find("first");
  const size_t fourth = table.find("fourth");
  ASSERT_NE(fourth, std::string::npos) << table;
  EXPECT_LT(second, first) << "90 % of the sectors before 60 % of the instructions";
  EXPECT_LT(first, fourth) << "60 % before 20 %";
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 4) << "a heading and three lines";
  EXPECT_THAT(table, testing::HasSubstr("90.0"));
  const std::string nothing = HotLines({}, 3);
  EXPECT_EQ(std::count(nothing.begin(), nothing.end(), '\n'), 1);
}

}  // namespace
}  // namespace vqllm
