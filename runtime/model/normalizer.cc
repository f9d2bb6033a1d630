#include "runtime/model/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

#include <utility>

#include "runtime/model/utf8.h"
#include "vq/base/check.h"

namespace vqllm {
namespace {

std::string ToUnicodeForm(std::string_view text, Normalizer::UnicodeForm form) {
  using icu::Normalizer2;
  using Instance = const Normalizer2* (*)(UErrorCode&);
  constexpr Instance kInstances[] = {Normalizer2::getNFCInstance, Normalizer2::getNFDInstance,
                                     Normalizer2::getNFKCInstance, Normalizer2::getNFKDInstance};
  UErrorCode status = U_ZERO_ERROR;
  const Normalizer2* normalizer = kInstances[static_cast<int>(form)](status);
  VQLLM_CHECK(U_SUCCESS(status), "ICU without its data: {}", u_errorName(status));
  std::string out;
  icu::StringByteSink<std::string> sink(&out);
  normalizer->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink,
                            nullptr, status);
  VQLLM_CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  return out;
}

}  // namespace

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

void Normalizer::AddUnicodeForm(UnicodeForm form) {
  Step step;
  step.form = form;
  steps_.push_back(std::move(step));
}

std::string Normalizer::Apply(std::string_view text, bool prepend) const {
  std::string out(text);
  for (const Step& step : steps_) {
    if (step.form) {
      out = ToUnicodeForm(out, *step.form);
    } else if (step.prepend) {
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
