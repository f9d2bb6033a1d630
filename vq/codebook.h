#pragma once

#include <cstdint>
#include <vector>

#include "vq/base/view.h"

namespace vqllm {

/// Longest subvector of any format.
inline constexpr int64_t kMaxSubvector = 16;

/// The entries of one codebook, laid out for searches that compare a subvector with sixteen entries at once.
/// Distances are sums of weight[d] (x[d] - entry[d])^2 as written, not expanded into norms and products: an
/// equal entry is at distance 0 wherever the points lie. A NaN is nearest to nothing and never wins.
class Codebook {
 public:
  /// entries [count, v], count >= 1, 1 <= v <= kMaxSubvector; copied.
  explicit Codebook(MatrixView<const float> entries);

  int64_t v() const { return v_; }
  int64_t count() const { return static_cast<int64_t>(rows_.size()) / v_; }
  const float* Entry(int64_t code) const { return rows_.data() + code * v_; }

  /// For each point [n, v] (weights empty or [n, v]) the code of the nearest entry, ties to the lowest; code
  /// 0 where the point holds a NaN. codes [n]; errors [n], the distances, unless null. Runs in the caller's
  /// thread.
  void Find(MatrixView<const float> points, MatrixView<const float> weights, int32_t* codes,
            float* errors) const;

  /// One candidate of a beam search.
  struct Candidate {
    float error;
    int32_t origin;
    int32_t code;
  };
  /// Compares x [v] (weights null or [v]) with every entry and keeps in `best` the `capacity` candidates of
  /// least error, in rising order; of equal ones those seen first. `count` is how many are there. New ones
  /// carry `origin`.
  void Collect(const float* x, const float* weights, int32_t origin, Candidate* best, int64_t capacity,
               int64_t* count) const;

 private:
  int64_t padded_;
  int64_t v_;
  std::vector<float> columns_;  // [v, padded]
  std::vector<float> rows_;     // [count, v]
};

/// The name under which encoders of single stages know it.
using NearestEntry = Codebook;

}  // namespace vqllm
