#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/regex.h"

namespace vqllm {

/// What becomes of the matches of a split; the words of tokenizer.json.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// Whether and where a space is put in front of text.
enum class PrependScheme { kNever, kFirst, kAlways };

/// Cuts text into words, within which tokens are merged, step by step: each step cuts the words of the one
/// before.
class PreTokenizer {
 public:
  struct Words {
    std::vector<std::string_view> list;  ///< into the input or into `rewritten`
    std::deque<std::string> rewritten;
  };

  /// `invert`: what lies between the matches counts as the match.
  void AddSplit(Regex pattern, SplitBehavior behavior, bool invert);
  void AddSplit(std::string text, SplitBehavior behavior, bool invert);
  /// A space before words that do not begin with one.
  void AddPrefixSpace();
  /// Spaces become `replacement`, one is put in front as `scheme` says, and `split` begins a word at each.
  void AddMetaspace(std::string replacement, PrependScheme scheme, bool split);

  /// `at_start`: the text is the beginning of the whole input.
  Words Split(std::string_view text, bool at_start) const;

 private:
  struct Step {
    enum { kSplit, kPrefixSpace, kMarkSpaces } kind = kSplit;
    std::vector<Regex> pattern;  // at most one
    std::string text;            // what is split at or written for a space
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
    PrependScheme scheme = PrependScheme::kNever;
  };
  static void Cut(const Step& step, std::string_view word, std::vector<std::string_view>& out);

  std::vector<Step> steps_;
};

}  // namespace vqllm
