#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vq/base/view.h"

namespace vqllm {

/// Joint least squares of additive quantisation: for given codes, the entries of all stages that minimise the
/// sum over points of sum_d weight[d] (x[d] - sum of entries[d])^2. The normal matrix has as many rows as
/// there are entries, but only its products are needed: conjugate gradients with its diagonal as
/// preconditioner, every dimension on its own. (It is singular: what is added to one stage and taken from
/// another changes nothing. From a start, the method finds a nearby solution.)
class AdditiveFit {
 public:
  /// points [n, v]; weights empty or [n, v]; codes [n, stages]; `stages` as in AdditiveEncoder. Views must
  /// outlive it.
  AdditiveFit(MatrixView<const float> points, MatrixView<const float> weights,
              std::span<const uint16_t> codes, const std::vector<std::vector<float>>& stages);

  /// Moves the entries towards the least error; entries without a code stay.
  void Improve(std::vector<std::vector<float>>& stages) const;

  struct EntryId {
    size_t stage;
    int64_t code;
  };
  /// Entries that no code points at.
  std::vector<EntryId> Unused() const;
  /// Sets an entry to what would have to stand in place of its stage's entry in the sum for this point.
  void MeetPoint(int64_t point, EntryId entry, std::vector<std::vector<float>>& stages) const;

 private:
  /// For the sums y of `entries` [all entries, v] over each point: out [all entries, v] += weight * (target -
  /// y), with the points as targets, or 0.
  void Scatter(const std::vector<double>& entries, bool with_points, std::vector<double>& out) const;

  MatrixView<const float> points_;
  MatrixView<const float> weights_;
  std::span<const uint16_t> codes_;
  std::vector<int64_t> offsets_;  // of each stage among all entries; the last element is their number
  std::vector<double> diagonal_;  // [all entries, v]: weights of the points of each entry
  std::vector<int64_t> counts_;   // points of each entry
};

}  // namespace vqllm
