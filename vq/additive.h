#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vq/base/view.h"
#include "vq/codebook.h"

// Additive vector quantisation (Babenko and Lempitsky, CVPR 2014): a subvector is the sum of one entry of
// each stage's codebook. Residual quantisation is the special case that picks the entries greedily, stage by
// stage.
namespace vqllm {

/// Finds the codes of subvectors by beam search over the stages: after each stage the `beam` best sums so far
/// live on. A beam of 1 is residual encoding.
class AdditiveEncoder {
 public:
  /// stages[m] holds the entries of stage m, [entries, v].
  AdditiveEncoder(const std::vector<std::vector<float>>& stages, int64_t v, int beam);

  /// points [n, v], weights empty or [n, v]; codes [n, stages]; errors [n], the weighted squared errors,
  /// unless null. Runs in the caller's thread.
  void Encode(MatrixView<const float> points, MatrixView<const float> weights, uint16_t* codes,
              float* errors) const;

 private:
  void EncodeGreedily(MatrixView<const float> points, MatrixView<const float> weights, uint16_t* codes,
                      float* errors) const;

  std::vector<Codebook> stages_;
  int64_t v_;
  int64_t beam_;
};

struct AdditiveOptions {
  int iterations = 25;  ///< rounds of k-means for the start of each stage
  int rounds = 0;  ///< rounds of encoding all points and then fitting all codebooks together to the codes
  int beam = 1;    ///< of these rounds
  uint64_t seed = 1;
};

/// Codebooks for sums of entries[m] entries of stage m, [entries[m], v] each, that minimise the sum over
/// points of sum_d weight[d] (x[d] - sum)^2: k-means on what the stages before leave over, then `rounds` of
/// beam search and joint least squares over the entries of all stages. Entries are values of fp16. points [n,
/// v], n >= 1, finite; weights empty or [n, v], >= 0. Deterministic by seed at any thread count.
std::vector<std::vector<float>> TrainAdditive(MatrixView<const float> points, MatrixView<const float> weights,
                                              std::span<const int> entries, const AdditiveOptions& options);

}  // namespace vqllm
