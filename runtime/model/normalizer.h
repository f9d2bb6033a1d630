#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/regex.h"

namespace vqllm {

/// Rewrites text before it is split.
class Normalizer {
 public:
  enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

  /// Puts `text` in front of every non-empty fragment that begins a text or follows an added token.
  void AddPrepend(std::string text);
  void AddReplace(std::string from, std::string to);
  void AddReplace(Regex from, std::string to);

  void AddUnicodeForm(UnicodeForm form);

  bool empty() const { return steps_.empty(); }
  /// `prepend`: whether AddPrepend's steps apply.
  std::string Apply(std::string_view text, bool prepend) const;

 private:
  struct Step {
    std::vector<Regex> pattern;  // at most one
    std::string from;
    std::string to;
    bool prepend = false;
    std::optional<UnicodeForm> form;
  };
  std::vector<Step> steps_;
};

}  // namespace vqllm
