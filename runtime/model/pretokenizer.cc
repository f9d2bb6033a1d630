#include "runtime/model/pretokenizer.h"

#include <utility>

#include "runtime/model/utf8.h"

namespace vqllm {
namespace {

/// A run of a word that a split's pattern matches or that lies between matches.
struct Run {
  size_t begin;
  size_t end;
  bool match;
};

std::vector<Run> Runs(const std::vector<Regex>& pattern, std::string_view text, std::string_view word) {
  std::vector<Run> runs;
  size_t done = 0;
  const auto add = [&](size_t begin, size_t end) {
    if (begin > done) runs.push_back({done, begin, false});
    runs.push_back({begin, end, true});
    done = end;
  };
  if (pattern.empty()) {
    for (size_t at; (at = word.find(text, done)) != std::string_view::npos;) add(at, at + text.size());
  } else {
    for (Regex::Scan scan(pattern[0], word); scan.Next();) add(scan.begin(), scan.end());
  }
  if (done < word.size()) runs.push_back({done, word.size(), false});
  return runs;
}

/// Joins a run with its neighbour where the behaviour says so; the result lists whole words.
void Join(std::vector<Run>& runs, SplitBehavior behavior) {
  std::vector<Run> joined;
  bool previous_match = false;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return;
    case SplitBehavior::kRemoved:
      for (const Run& run : runs) {
        if (!run.match) joined.push_back(run);
      }
      break;
    case SplitBehavior::kContiguous:
      for (const Run& run : runs) {
        if (!joined.empty() && joined.back().match == run.match) {
          joined.back().end = run.end;
        } else {
          joined.push_back(run);
        }
      }
      break;
    case SplitBehavior::kMergedWithPrevious:
      for (const Run& run : runs) {
        if (run.match && !previous_match && !joined.empty()) {
          joined.back().end = run.end;
        } else {
          joined.push_back(run);
        }
        previous_match = run.match;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      for (size_t i = 0; i < runs.size(); ++i) {
        const bool next_is_text = i + 1 < runs.size() && !runs[i + 1].match;
        if (runs[i].match && next_is_text) {
          joined.push_back({runs[i].begin, runs[i + 1].end, true});
          ++i;
        } else {
          joined.push_back(runs[i]);
        }
      }
      break;
  }
  runs = std::move(joined);
}

}  // namespace

void PreTokenizer::AddSplit(Regex pattern, SplitBehavior behavior, bool invert) {
  Step step;
  step.pattern.push_back(std::move(pattern));
  step.behavior = behavior;
  step.invert = invert;
  steps_.push_back(std::move(step));
}

void PreTokenizer::AddSplit(std::string text, SplitBehavior behavior, bool invert) {
  Step step;
  step.text = std::move(text);
  step.behavior = behavior;
  step.invert = invert;
  steps_.push_back(std::move(step));
}

void PreTokenizer::AddPrefixSpace() {
  Step step;
  step.kind = Step::kPrefixSpace;
  steps_.push_back(std::move(step));
}

void PreTokenizer::AddMetaspace(std::string replacement, PrependScheme scheme, bool split) {
  Step step;
  step.kind = Step::kMarkSpaces;
  step.text = replacement;
  step.scheme = scheme;
  steps_.push_back(std::move(step));
  if (split) AddSplit(std::move(replacement), SplitBehavior::kMergedWithNext, false);
}

void PreTokenizer::Cut(const Step& step, std::string_view word, std::vector<std::string_view>& out) {
  std::vector<Run> runs = Runs(step.pattern, step.text, word);
  if (step.invert) {
    for (Run& run : runs) run.match = !run.match;
  }
  Join(runs, step.behavior);
  for (const Run& run : runs) {
    if (run.end > run.begin) out.push_back(word.substr(run.begin, run.end - run.begin));
  }
}

PreTokenizer::Words PreTokenizer::Split(std::string_view text, bool at_start) const {
  Words words;
  if (!text.empty()) words.list.push_back(text);
  for (const Step& step : steps_) {
    std::vector<std::string_view> next;
    for (size_t i = 0; i < words.list.size(); ++i) {
      const std::string_view word = words.list[i];
      if (step.kind == Step::kSplit) {
        Cut(step, word, next);
      } else if (step.kind == Step::kPrefixSpace) {
        next.push_back(word[0] == ' ' ? word : words.rewritten.emplace_back(1, ' ').append(word));
      } else {
        std::string rewritten = ReplaceAll(word, " ", step.text);
        const bool prepend = step.scheme == PrependScheme::kAlways ||
                             (step.scheme == PrependScheme::kFirst && at_start && i == 0);
        if (prepend && !rewritten.starts_with(step.text)) rewritten.insert(0, step.text);
        next.push_back(words.rewritten.emplace_back(std::move(rewritten)));
      }
    }
    words.list = std::move(next);
  }
  return words;
}

}  // namespace vqllm
