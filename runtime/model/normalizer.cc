#include "runtime/model/normalizer.h"

#include <utility>

#include "runtime/model/utf8.h"

namespace vqllm {

void Normalizer::AddPrepend(std::string text) {
  Step step;
  step.to = std::move(text);
  step.prepend = true;
  steps_.push_back(std::move(step));
}

void Normalizer::AddReplace(std::string from, std::string to) {
  Step step;
  step.from = std::move(from);
  step.to = std::move(to);
  steps_.push_back(std::move(step));
}

void Normalizer::AddReplace(Regex from, std::string to) {
  Step step;
  step.pattern.push_back(std::move(from));
  step.to = std::move(to);
  steps_.push_back(std::move(step));
}

std::string Normalizer::Apply(std::string_view text, bool prepend) const {
  std::string out(text);
  for (const Step& step : steps_) {
    if (step.prepend) {
      if (prepend && !out.empty()) out.insert(0, step.to);
    } else if (step.pattern.empty()) {
      out = ReplaceAll(out, step.from, step.to);
    } else {
      std::string replaced;
      size_t done = 0;
      for (Regex::Scan scan(step.pattern[0], out); scan.Next(); done = scan.end()) {
        replaced.append(out, done, scan.begin() - done);
        replaced += step.to;
      }
      replaced.append(out, done);
      out = std::move(replaced);
    }
  }
  return out;
}

}  // namespace vqllm
