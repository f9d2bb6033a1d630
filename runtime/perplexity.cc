#include "runtime/perplexity.h"

#include <algorithm>
#include <cmath>

#include "runtime/sampler.h"
#include "vq/base/error.h"
#include "vq/base/progress.h"

namespace vqllm {
namespace {

// Tokens that go through the decoder together: several short windows fill the matrix products that one would
// leave thin.
constexpr int64_t kTokensTogether = 512;

}  // namespace

std::vector<ScoredWindow> StridedWindows(std::span<const int32_t> text, int32_t bos, int64_t context,
                                         int64_t stride) {
  const int64_t size = static_cast<int64_t>(text.size());
  if (context < 1) Fail("ctx: found {}, allowed: at least 1", context);
  if (stride < 1 || stride > context) Fail("stride: found {}, allowed: 1 to ctx, {}", stride, context);
  const int64_t first = bos >= 0 ? 0 : 1;  // the first token that has something before it
  if (size <= first) Fail("text of {} tokens: nothing to score", size);
  std::vector<ScoredWindow> windows;
  int64_t scored = first;
  for (int64_t end = std::min(first + context, size);; end = std::min(end + stride, size)) {
    const int64_t begin = std::max(first, end - context);
    ScoredWindow window;
    window.inputs.push_back(bos >= 0 ? bos : text[static_cast<size_t>(begin - 1)]);
    window.inputs.insert(window.inputs.end(), text.begin() + begin, text.begin() + end - 1);
    window.targets.assign(text.begin() + scored, text.begin() + end);
    windows.push_back(std::move(window));
    scored = end;
    if (end == size) return windows;
  }
}

std::vector<ScoredWindow> LlamaCppWindows(std::span<const int32_t> text, int32_t bos, int64_t context,
                                          int64_t chunks) {
  if (context < 4) Fail("ctx: found {}, allowed: at least 4", context);
  std::vector<int32_t> tokens(text.begin(), text.end());
  if (bos >= 0) tokens.insert(tokens.begin(), bos);
  const int64_t whole = static_cast<int64_t>(tokens.size()) / context;
  if (whole == 0) Fail("text of {} tokens: not one whole chunk of ctx = {}", tokens.size(), context);
  std::vector<ScoredWindow> windows;
  for (int64_t chunk = 0; chunk < (chunks > 0 ? std::min(chunks, whole) : whole); ++chunk) {
    const auto begin = tokens.begin() + chunk * context;
    ScoredWindow window;
    window.inputs.assign(begin, begin + context - 1);
    if (bos >= 0) window.inputs.front() = bos;
    window.targets.assign(begin + context / 2 + 1, begin + context);
    windows.push_back(std::move(window));
  }
  return windows;
}

void ScoreWindows(Decoder& decoder, const KvCacheSpec& kv, std::span<const ScoredWindow> windows,
                  const std::function<void(std::span<const float>, int32_t)>& visit) {
  int64_t longest = 1;
  int64_t total = 0;
  for (const ScoredWindow& window : windows) {
    longest = std::max(longest, static_cast<int64_t>(window.inputs.size()));
    total += static_cast<int64_t>(window.inputs.size());
  }
  const int64_t together =
      std::clamp<int64_t>(kTokensTogether / longest, 1, static_cast<int64_t>(windows.size()));
  KvCache cache(decoder.device(), decoder.config(), kv, together * longest, static_cast<int>(together),
                decoder.context());
  Progress progress("scoring tokens", total);
  const size_t vocab = static_cast<size_t>(decoder.config().vocab);
  std::vector<float> logits;
  for (size_t begin = 0; begin < windows.size(); begin += static_cast<size_t>(together)) {
    const auto group =
        windows.subspan(begin, std::min(static_cast<size_t>(together), windows.size() - begin));
    std::vector<DecoderInput> inputs;
    for (const ScoredWindow& window : group) {
      inputs.push_back({.slot = cache.NewSequence(),
                        .tokens = window.inputs,
                        .logits = static_cast<int64_t>(window.targets.size())});
    }
    decoder.Run(cache, inputs, logits);
    size_t row = 0;
    for (const ScoredWindow& window : group) {
      for (const int32_t target : window.targets)
        visit(std::span(logits).subspan(row++ * vocab, vocab), target);
      progress.Step(static_cast<int64_t>(window.inputs.size()));
    }
    for (const DecoderInput& input : inputs) cache.FreeSequence(input.slot);
  }
}

void PerplexitySum::Add(double negative_log_likelihood) {
  ++tokens_;
  sum_ += negative_log_likelihood;
  squares_ += negative_log_likelihood * negative_log_likelihood;
}

double PerplexitySum::perplexity() const { return std::exp(sum_ / static_cast<double>(tokens_)); }

double PerplexitySum::error() const {
  if (tokens_ < 2) return 0;
  const double mean = sum_ / static_cast<double>(tokens_);
  const double variance = std::max(0.0, squares_ / static_cast<double>(tokens_) - mean * mean);
  return perplexity() * std::sqrt(variance / static_cast<double>(tokens_ - 1));
}

double NegativeLogLikelihood(std::span<const float> logits, int32_t target) {
  return LogSumExp(logits) - logits[static_cast<size_t>(target)];
}

}  // namespace vqllm
