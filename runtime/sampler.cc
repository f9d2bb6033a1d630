#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vq/base/error.h"

namespace vqllm {
namespace {

/// Throws where no token can be drawn; else the largest logit.
float CheckedMax(std::span<const float> logits) {
  float largest = -std::numeric_limits<float>::infinity();
  for (size_t token = 0; token < logits.size(); ++token) {
    if (std::isnan(logits[token]))
      Fail("logit of token {} is NaN: the model or its quantised weights are damaged", token);
    largest = std::max(largest, logits[token]);
  }
  if (std::isinf(largest))
    Fail("the largest logit is {}: the model or its quantised weights are damaged", largest);
  return largest;
}

bool MoreLikely(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

}  // namespace

void ValidateSampling(const SamplingOptions& options) {
  if (!(options.temperature >= 0 && options.temperature <= 100)) {
    Fail("temperature: found {}, allowed: 0 to 100", options.temperature);
  }
  if (options.top_k < 0) Fail("top_k: found {}, allowed: 0 (all) or more", options.top_k);
  if (!(options.top_p > 0 && options.top_p <= 1))
    Fail("top_p: found {}, allowed: above 0, at most 1", options.top_p);
  if (!(options.min_p >= 0 && options.min_p <= 1)) Fail("min_p: found {}, allowed: 0 to 1", options.min_p);
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), rng_(options.seed) {
  ValidateSampling(options);
}

int32_t Sampler::Sample(std::span<const float> logits) {
  if (options_.temperature == 0) return ArgMax(logits);
  const float largest = CheckedMax(logits);
  candidates_.clear();
  for (size_t token = 0; token < logits.size(); ++token)
    candidates_.emplace_back(logits[token], static_cast<int32_t>(token));
  if (options_.top_k > 0 && static_cast<size_t>(options_.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(),
                     MoreLikely);
    candidates_.resize(static_cast<size_t>(options_.top_k));
  }
  const auto weight = [&](float logit, double temperature) {
    return std::exp((static_cast<double>(logit) - largest) / temperature);
  };
  if (options_.top_p < 1) {
    std::sort(candidates_.begin(), candidates_.end(), MoreLikely);
    double total = 0;
    for (const auto& [logit, token] : candidates_) total += weight(logit, 1);
    double reached = 0;
    size_t kept = 0;
    while (kept < candidates_.size() && reached < options_.top_p * total)
      reached += weight(candidates_[kept++].first, 1);
    candidates_.resize(kept);
  }
  if (options_.min_p > 0) {
    std::erase_if(candidates_,
                  [&](const auto& candidate) { return weight(candidate.first, 1) < options_.min_p; });
  }
  double total = 0;
  for (const auto& [logit, token] : candidates_) total += weight(logit, options_.temperature);
  double draw = rng_.Uniform() * total;
  int32_t chosen = candidates_.front().second;
  for (const auto& [logit, token] : candidates_) {
    const double share = weight(logit, options_.temperature);
    if (share > 0) chosen = token;  // rounding must not end at a token that has no probability
    draw -= share;
    if (draw < 0) break;
  }
  return chosen;
}

int32_t ArgMax(std::span<const float> logits) {
  CheckedMax(logits);
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double LogSumExp(std::span<const float> logits) {
  const double largest = CheckedMax(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

void LogSoftmax(std::span<const float> logits, std::span<float> out) {
  const double offset = LogSumExp(logits);
  for (size_t i = 0; i < logits.size(); ++i) out[i] = static_cast<float>(logits[i] - offset);
}

}  // namespace vqllm
