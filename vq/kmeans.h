#pragma once

#include <cstdint>
#include <vector>

#include "vq/base/view.h"
#include "vq/codebook.h"

namespace vqllm {

struct KMeansOptions {
  int entries = 256;
  int iterations = 25;  ///< rounds of Lloyd; fewer where no point changes its centroid
  uint64_t seed = 1;
};

struct KMeansResult {
  std::vector<float> centroids;  ///< [entries, v]; finite, also those that no point is nearest to
  int64_t unused = 0;            ///< entries that no point is nearest to
};

/// Minimises the sum over points of sum_d weight[d] (x[d] - c[d])^2. points [n, v], n >= 1; weights is empty
/// or [n, v], all >= 0. Seeds by k-means++ (up to 1024 entries; above that from points spread evenly), then
/// Lloyd; an entry that loses its last point takes over the point with the largest error. No more distinct
/// points than entries give error 0. Deterministic by seed at any thread count. NaN in points is the caller's
/// to refuse.
KMeansResult KMeans(MatrixView<const float> points, MatrixView<const float> weights,
                    const KMeansOptions& options);

/// Points beyond which a codebook of so many entries gains nothing worth its time from further ones of the
/// same source.
int64_t EnoughPoints(int64_t entries);

}  // namespace vqllm
