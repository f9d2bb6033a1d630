#pragma once

#include <cstdint>
#include <vector>

#include "vq/base/view.h"

namespace vqllm {

struct KMeansOptions {
  int entries = 256;
  int iterations = 25;  ///< rounds of Lloyd; fewer where no point changes its centroid
  uint64_t seed = 1;
};

struct KMeansResult {
  std::vector<float> centroids;  ///< [entries, v]; finite, also those that no point is nearest to
  int64_t unused = 0;            ///< entries that no training point is nearest to
};

/// Minimises the sum over points of sum_d weight[d] (x[d] - c[d])^2. points [n, v], n >= 1; weights is empty
/// or [n, v], all >= 0. Seeds by k-means++ (up to 1024 entries; above that from distinct random points), then
/// Lloyd; an entry that loses its last point takes over the point with the largest error. Fewer distinct
/// points than entries give error 0. Deterministic by seed at any thread count. NaN in points is the caller's
/// to refuse.
KMeansResult KMeans(MatrixView<const float> points, MatrixView<const float> weights,
                    const KMeansOptions& options);

/// A codebook laid out for the search for nearest entries.
class NearestEntry {
 public:
  /// entries [count, v], v <= 16.
  explicit NearestEntry(MatrixView<const float> entries);

  /// For each point [n, v] (weights empty or [n, v]) the entry of least weighted squared distance, ties to
  /// the lowest index. codes [n]; errors [n] unless null. Runs in the caller's thread.
  void Find(MatrixView<const float> points, MatrixView<const float> weights, int32_t* codes,
            float* errors) const;

 private:
  int64_t count_;
  int64_t padded_;
  int64_t v_;
  std::vector<float> columns_;  // [v, padded]: entry values
  std::vector<float> norms_;    // [padded]: half of the squared norm; infinite behind the last entry
  std::vector<float> rows_;     // [count, v]
};

}  // namespace vqllm
