#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "vq/base/rng.h"

namespace vqllm {

/// How the next token is drawn. The filters work in this order: top_k, top_p, min_p, each on what the one
/// before left, all at temperature 1; then the temperature, then one draw.
struct SamplingOptions {
  float temperature = 1;  ///< 0: the most likely token, ties to the lowest id
  int top_k = 0;          ///< keep the k most likely; 0: all
  float top_p = 1;        ///< keep the fewest whose probabilities reach p
  float min_p = 0;        ///< keep those at least min_p times as likely as the first
  uint64_t seed = 0;
};

/// Throws Error that names the first option out of range.
void ValidateSampling(const SamplingOptions& options);

/// Draws the tokens of one request. Each request has its own, so that its tokens never depend on its
/// neighbours in a batch.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  /// A token for logits [vocab]. Throws Error where a logit is NaN or all are -infinity.
  int32_t Sample(std::span<const float> logits);

 private:
  SamplingOptions options_;
  Rng rng_;
  std::vector<std::pair<float, int32_t>> candidates_;  // logit, token
};

/// The most likely token; ties to the lowest id. Throws Error on NaN.
int32_t ArgMax(std::span<const float> logits);

/// log(sum of exp(logit)) in double precision: what a logit exceeds or misses by its log-probability. Throws
/// Error on NaN and where all are -infinity.
double LogSumExp(std::span<const float> logits);

/// Log-probabilities of all tokens: logits less LogSumExp; out [vocab]. Errors as there.
void LogSoftmax(std::span<const float> logits, std::span<float> out);

}  // namespace vqllm
