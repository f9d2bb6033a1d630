#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/model/regex.h"

namespace vqllm {

/// A token whose text is found in the input before anything else looks at it.
struct AddedToken {
  std::string text;
  int32_t id = -1;
  bool special = false;      ///< found only where special tokens are parsed
  bool single_word = false;  ///< not within a longer word
  bool lstrip = false;       ///< takes white space on its left with it
  bool rstrip = false;
};

/// A piece of the input: text, or a token that was found.
struct TextPart {
  std::string_view text;
  int32_t id = -1;  ///< -1: text
};

/// Finds added tokens: the leftmost, and of those the longest.
class AddedTokens {
 public:
  /// Throws Error "<where>: ..." on empty text and on text of more than 1024 bytes. Of two tokens with one
  /// text the later counts.
  void Add(AddedToken token, const std::string& where);
  bool empty() const { return tokens_.empty(); }
  /// Cuts valid or broken UTF-8 at every added token.
  std::vector<TextPart> Split(std::string_view text, bool parse_special) const;

 private:
  const AddedToken* LongestAt(std::string_view text, size_t begin, bool parse_special) const;

  // A trie over bytes: (node, byte) -> node; tokens that end in a node.
  static uint64_t Edge(size_t node, char byte) { return node << 8 | static_cast<unsigned char>(byte); }
  std::unordered_map<uint64_t, size_t> edges_;
  std::vector<int32_t> ends_ = {-1};
  std::array<bool, 256> first_ = {};
  std::vector<AddedToken> tokens_;
  std::optional<Regex> word_;  // where a token is single_word
};

}  // namespace vqllm
