#include <gtest/gtest.h>

#include "runtime/generate.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

/// All pieces that come out, each followed by '|', and '!' where a stop string ended the text.
std::string Feed(std::vector<std::string> stop, const std::vector<std::string>& pieces) {
  StopFilter filter(std::move(stop));
  std::string out;
  for (const std::string& piece : pieces) {
    out += filter.Push(piece) + "|";
    if (filter.stopped()) return out + "!";
  }
  return out + filter.Finish();
}

const std::vector<std::string> kLetters = {"A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K"};

TEST(StopFilter, HoldsBackWhatMayBecomeAStopString) {  // class of case S03
  EXPECT_EQ(Feed({"DEFGHIJ"}, kLetters), "A|B|C||||||||!");
  EXPECT_EQ(Feed({"EF", "DEFX"}, kLetters), "A|B|C|||D|!");
  EXPECT_EQ(Feed({"K"}, kLetters), "A|B|C|D|E|F|G|H|I|J||!");
}

TEST(StopFilter, ReleasesATailThatDoesNotComplete) {
  EXPECT_EQ(Feed({"CDX"}, kLetters), "A|B|||CDE|F|G|H|I|J|K|");
  EXPECT_EQ(Feed({"JKL"}, kLetters), "A|B|C|D|E|F|G|H|I|||JK");
}

TEST(StopFilter, DropsWhatFollowsTheStopStringInTheSamePiece) {
  EXPECT_EQ(Feed({"STOP"}, {"go on STOP and more"}), "go on |!");
  EXPECT_EQ(Feed({"b", "a"}, {"xxabxx"}), "xx|!");
}

TEST(StopFilter, FindsOverlappingBeginnings) { EXPECT_EQ(Feed({"aab"}, {"a", "a", "a", "b"}), "||a||!"); }

TEST(StopFilter, WorksOnBytesOfLongCharacters) {
  EXPECT_EQ(Feed({"\xf0\x9f\x98\x80"}, {"hi ", "\xf0\x9f\x98\x80", "x"}), "hi ||!");
}

TEST(StopFilter, RefusesAnEmptyStopString) { EXPECT_THROW(StopFilter({""}), Error); }

}  // namespace
}  // namespace vqllm
