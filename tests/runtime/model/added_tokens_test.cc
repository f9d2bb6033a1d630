#include "runtime/model/added_tokens.h"

#include "vq/base/error.h"

namespace vqllm {
namespace {

/// The ids found, -1 for text between them.
std::vector<int32_t> Found(const AddedTokens& tokens, std::string_view text, bool parse_special = true) {
  std::vector<int32_t> ids;
  for (const TextPart& part : tokens.Split(text, parse_special)) ids.push_back(part.id);
  return ids;
}

using Ids = std::vector<int32_t>;

TEST(AddedTokens, LeftmostThenLongest) {
  AddedTokens tokens;
  tokens.Add({.text = "ab", .id = 1}, "x");
  tokens.Add({.text = "abcd", .id = 2}, "x");
  tokens.Add({.text = "bc", .id = 3, .special = true}, "x");
  EXPECT_EQ(Found(tokens, "abcabcd"), (Ids{1, -1, 2}));
  EXPECT_EQ(Found(tokens, "bcab"), (Ids{3, 1}));
  EXPECT_EQ(Found(tokens, "bcab", false), (Ids{-1, 1}));
  EXPECT_EQ(Found(tokens, ""), Ids{});
}

TEST(AddedTokens, SingleWordsStandAlone) {
  AddedTokens tokens;
  tokens.Add({.text = "foo", .id = 1, .single_word = true}, "x");
  EXPECT_EQ(Found(tokens, "foo"), Ids{1});
  EXPECT_EQ(Found(tokens, "(foo)"), (Ids{-1, 1, -1}));
  EXPECT_EQ(Found(tokens, "\u00bdfoo\xff"),
            (Ids{-1, 1, -1}));  // a fraction is no word character, nor a broken byte
  for (const char* joined : {"foos", "_foo", "\u00e9foo", "foo\u0301", "\u200dfoo", "foo9"}) {
    EXPECT_EQ(Found(tokens, joined), Ids{-1}) << joined;
  }
}

TEST(AddedTokens, StripTakesUnicodeSpaceButNotThatOfTheTokenBefore) {
  AddedTokens tokens;
  tokens.Add({.text = "<l>", .id = 1, .lstrip = true}, "x");
  tokens.Add({.text = "  ", .id = 2}, "x");
  tokens.Add({.text = "<r>", .id = 3, .rstrip = true}, "x");
  EXPECT_EQ(Found(tokens, "a \u3000<l>"), (Ids{-1, 1}));
  EXPECT_EQ(Found(tokens, "  <l>"), (Ids{2, 1}));
  EXPECT_EQ(Found(tokens, "<r>\u2028 \n"), Ids{3});
}

TEST(AddedTokens, RefusesEmptyAndEndlessText) {
  AddedTokens tokens;
  EXPECT_THROW(tokens.Add({.text = "", .id = 1}, "x"), Error);
  EXPECT_THROW(tokens.Add({.text = std::string(1025, 'a'), .id = 1}, "x"), Error);
}

}  // namespace
}  // namespace vqllm
