#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/model/vocabulary.h"

namespace vqllm {

/// Byte-pair encoding: neighbours merge in the order in which training found the pairs (Sennrich et al.
/// 2016).
class Bpe {
 public:
  struct Options {
    bool ignore_merges = false;  ///< a word that is a token needs no merges
    bool byte_fallback = false;  ///< a character without a token becomes its kByte tokens
    bool fuse_unknown = false;   ///< a run of unknown characters is one unknown token
    int32_t unknown = -1;        ///< -1: a character without a token is an Error
  };

  /// `vocabulary` must outlive this.
  Bpe(const Vocabulary& vocabulary, const Options& options);

  /// The next merge in rank. Throws Error "<where>: ..." where one of the three tokens is missing. Of two
  /// merges of one pair the first counts.
  void AddMerge(std::string_view left, std::string_view right, const std::string& where);

  /// Appends the tokens of a word: raw UTF-8, not in the vocabulary's spelling where that is byte-level.
  /// Throws Error on a character that has neither a token nor a fallback.
  void Encode(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Rule {
    int32_t rank;
    int32_t id;
  };
  static uint64_t Pair(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  const Vocabulary& vocabulary_;
  Options options_;
  std::unordered_map<uint64_t, Rule> rules_;
  int32_t ranks_ = 0;
};

}  // namespace vqllm
