#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/decoder.h"

namespace vqllm {

/// A run of tokens through an empty KV cache, of which the last targets.size() predictions are scored.
struct ScoredWindow {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;  ///< target i follows inputs[inputs.size() - targets.size() + i]
};

/// Windows of at most `context` inputs over a text, so that every token is scored exactly once. A window ends
/// `stride` tokens after the one before (1 <= stride <= context) and scores what that one did not. Its first
/// input is BOS, or, where `bos` is -1, the token before the window; without BOS the first token of the text
/// has nothing before it and is not scored. Throws Error where nothing is left to score.
std::vector<ScoredWindow> StridedWindows(std::span<const int32_t> text, int32_t bos, int64_t context,
                                         int64_t stride);

/// The windows of llama.cpp's llama-perplexity: the text with BOS in front (where bos is not -1) is cut into
/// whole chunks of `context` tokens, the first token of each is replaced by BOS, and the predictions of the
/// second half are scored. Different numbers come of it: use it to compare with that program alone. `chunks`
/// 0: as many as there are.
std::vector<ScoredWindow> LlamaCppWindows(std::span<const int32_t> text, int32_t bos, int64_t context,
                                          int64_t chunks);

/// Runs the windows, each from an empty cache in the format of `kv`, and calls visit(logits [vocab], target)
/// for every target in order.
void ScoreWindows(Decoder& decoder, const KvCacheSpec& kv, std::span<const ScoredWindow> windows,
                  const std::function<void(std::span<const float> logits, int32_t target)>& visit);

/// exp of the mean negative log-likelihood (natural log, sums in double).
class PerplexitySum {
 public:
  void Add(double negative_log_likelihood);
  int64_t tokens() const { return tokens_; }
  double perplexity() const;
  /// One standard error: perplexity * sd(nll) / sqrt(tokens - 1).
  double error() const;

 private:
  int64_t tokens_ = 0;
  double sum_ = 0;
  double squares_ = 0;
};

/// -log p(target). Throws Error on NaN logits.
double NegativeLogLikelihood(std::span<const float> logits, int32_t target);

}  // namespace vqllm
