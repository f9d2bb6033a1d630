#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/model/vocabulary.h"

namespace vqllm {

/// Sentencepiece's BPE from a table of scores: of all neighbours that join to a token, those with the highest
/// score go first. A character without a token becomes its byte tokens, else the unknown token.
class ScoreMerger {
 public:
  /// `scores` has one finite number for each id; `vocabulary` must outlive this.
  ScoreMerger(const Vocabulary& vocabulary, std::vector<float> scores, int32_t unknown);
  /// Appends the tokens of valid UTF-8 text in which spaces are already U+2581. Throws Error on a character
  /// that has no token where there is no unknown token either.
  void Encode(std::string_view text, std::vector<int32_t>& ids) const;

 private:
  const Vocabulary& vocabulary_;
  std::vector<float> scores_;
  int32_t unknown_;
};

}  // namespace vqllm
