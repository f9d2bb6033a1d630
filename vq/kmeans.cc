#include "vq/kmeans.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "vq/base/check.h"
#include "vq/base/parallel.h"
#include "vq/base/rng.h"

namespace vqllm {
namespace {

constexpr int64_t kChunk = 2048;    // points of one piece of parallel work
constexpr int kMaxPlusPlus = 1024;  // k-means++ costs entries passes over the points

float WeightedError(const float* x, const float* w, const float* c, int64_t v) {
  float error = 0;
  for (int64_t d = 0; d < v; ++d) error += (w ? w[d] : 1.0f) * (x[d] - c[d]) * (x[d] - c[d]);
  return error;
}

/// What is clustered.
struct Training {
  MatrixView<const float> points;
  MatrixView<const float> weights;  // data is null where all weigh 1
  int64_t n;
  int64_t v;

  const float* Point(int64_t i) const { return points.Row(i); }
  const float* Weight(int64_t i) const { return weights.data ? weights.Row(i) : nullptr; }
  MatrixView<const float> PointView(int64_t begin, int64_t count) const {
    return {Point(begin), count, v, points.stride};
  }
  MatrixView<const float> WeightView(int64_t begin, int64_t count) const {
    return weights.data ? MatrixView<const float>(Weight(begin), count, v, weights.stride) : weights;
  }
};

/// Points no two of which are equal, in lexicographic order; empty where there are more than `limit`.
std::vector<float> DistinctPoints(const Training& t, int64_t limit) {
  std::vector<int64_t> order(static_cast<size_t>(t.n));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::lexicographical_compare(t.Point(a), t.Point(a) + t.v, t.Point(b), t.Point(b) + t.v);
  });
  std::vector<float> distinct;
  int64_t count = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && std::equal(t.Point(order[i]), t.Point(order[i]) + t.v, t.Point(order[i - 1]))) continue;
    if (++count > limit) return {};
    distinct.insert(distinct.end(), t.Point(order[i]), t.Point(order[i]) + t.v);
  }
  return distinct;
}

void SeedRandom(const Training& t, int entries, Rng& rng, std::vector<float>& centroids) {
  for (int64_t e = 0; e < entries; ++e) {  // one of each of `entries` equal runs of points
    const int64_t begin = t.n * e / entries;
    const int64_t end = std::max(begin + 1, t.n * (e + 1) / entries);
    const int64_t pick = begin + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(end - begin)));
    std::copy_n(t.Point(pick), t.v, centroids.data() + e * t.v);
  }
}

/// k-means++ (Arthur and Vassilvitskii, 2007): each further centroid is a point drawn by its error so far.
void SeedPlusPlus(const Training& t, int entries, Rng& rng, std::vector<float>& centroids) {
  std::vector<float> errors(static_cast<size_t>(t.n), std::numeric_limits<float>::infinity());
  int64_t pick = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(t.n)));
  for (int64_t e = 0; e < entries; ++e) {
    float* centroid = centroids.data() + e * t.v;
    std::copy_n(t.Point(pick), t.v, centroid);
    double total = 0;
    for (int64_t i = 0; i < t.n; ++i) {
      float& error = errors[static_cast<size_t>(i)];
      error = std::min(error, WeightedError(t.Point(i), t.Weight(i), centroid, t.v));
      total += error;
    }
    double draw = rng.Uniform() * total;
    pick = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(t.n)));  // where all errors are 0
    for (int64_t i = 0; i < t.n && total > 0; ++i) {
      draw -= errors[static_cast<size_t>(i)];
      if (draw < 0) {
        pick = i;
        break;
      }
    }
  }
}

/// One round of Lloyd. Returns whether a point changed its centroid.
class Lloyd {
 public:
  Lloyd(const Training& t, int entries)
      : t_(t), entries_(entries), codes_(static_cast<size_t>(t.n), -1), errors_(static_cast<size_t>(t.n)) {}

  bool Assign(const std::vector<float>& centroids) {
    const NearestEntry nearest({centroids.data(), entries_, t_.v});
    const std::vector<int32_t> before = codes_;
    ParallelFor(t_.n, kChunk, [&](int64_t begin, int64_t end) {
      nearest.Find(t_.PointView(begin, end - begin), t_.WeightView(begin, end - begin), codes_.data() + begin,
                   errors_.data() + begin);
    });
    return codes_ != before;
  }

  void Update(std::vector<float>& centroids) {
    std::vector<double> sums(static_cast<size_t>(entries_ * t_.v));
    std::vector<double> masses(sums.size());
    std::vector<int64_t> counts(static_cast<size_t>(entries_));
    for (int64_t i = 0; i < t_.n; ++i) {
      const int64_t code = codes_[static_cast<size_t>(i)];
      ++counts[static_cast<size_t>(code)];
      for (int64_t d = 0; d < t_.v; ++d) {
        const double weight = t_.weights.data ? t_.Weight(i)[d] : 1.0;
        sums[static_cast<size_t>(code * t_.v + d)] += weight * t_.Point(i)[d];
        masses[static_cast<size_t>(code * t_.v + d)] += weight;
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      if (masses[i] > 0) centroids[i] = static_cast<float>(sums[i] / masses[i]);
    }
    Respawn(counts, centroids);
  }

  int64_t Unused() const {
    std::vector<bool> used(static_cast<size_t>(entries_));
    for (const int32_t code : codes_) used[static_cast<size_t>(code)] = true;
    return std::count(used.begin(), used.end(), false);
  }

 private:
  /// Every empty entry moves to one of the points with the largest errors.
  void Respawn(const std::vector<int64_t>& counts, std::vector<float>& centroids) {
    std::vector<int64_t> empty;
    for (int64_t e = 0; e < entries_; ++e) {
      if (counts[static_cast<size_t>(e)] == 0) empty.push_back(e);
    }
    if (empty.empty()) return;
    std::vector<int64_t> worst(static_cast<size_t>(t_.n));
    std::iota(worst.begin(), worst.end(), 0);
    const size_t wanted = std::min(empty.size(), worst.size());
    std::partial_sort(worst.begin(), worst.begin() + static_cast<int64_t>(wanted), worst.end(),
                      [&](int64_t a, int64_t b) {
                        const float ea = errors_[static_cast<size_t>(a)];
                        const float eb = errors_[static_cast<size_t>(b)];
                        return ea != eb ? ea > eb : a < b;
                      });
    for (size_t i = 0; i < wanted && errors_[static_cast<size_t>(worst[i])] > 0; ++i) {
      std::copy_n(t_.Point(worst[i]), t_.v, centroids.data() + empty[i] * t_.v);
    }
  }

  const Training& t_;
  int64_t entries_;
  std::vector<int32_t> codes_;
  std::vector<float> errors_;
};

}  // namespace

KMeansResult KMeans(MatrixView<const float> points, MatrixView<const float> weights,
                    const KMeansOptions& options) {
  VQLLM_CHECK(points.rows >= 1 && points.cols >= 1 && points.cols <= kMaxSubvector && options.entries >= 1);
  Rng rng(options.seed);
  const int64_t entries = options.entries;
  const Training t{.points = points, .weights = weights, .n = points.rows, .v = points.cols};
  KMeansResult result;
  result.centroids.resize(static_cast<size_t>(entries * t.v));

  // Few distinct points: each becomes an entry, and the error is 0.
  std::vector<float> distinct = DistinctPoints(t, entries);
  if (!distinct.empty()) {
    const int64_t found = static_cast<int64_t>(distinct.size()) / t.v;
    result.unused = entries - found;
    for (int64_t e = found; e < entries; ++e)
      distinct.insert(distinct.end(), distinct.begin(), distinct.begin() + t.v);
    result.centroids = std::move(distinct);
    return result;
  }

  if (entries <= kMaxPlusPlus) {
    SeedPlusPlus(t, options.entries, rng, result.centroids);
  } else {
    SeedRandom(t, options.entries, rng, result.centroids);
  }
  Lloyd lloyd(t, options.entries);
  for (int round = 0; round < options.iterations && lloyd.Assign(result.centroids); ++round)
    lloyd.Update(result.centroids);
  lloyd.Assign(result.centroids);
  result.unused = lloyd.Unused();
  return result;
}

int64_t EnoughPoints(int64_t entries) {
  // On a unit Gaussian the error of VQ<4,8,1> on fresh data is within 0.3 % of its limit at 256 points an
  // entry.
  constexpr int64_t kPointsPerEntry = 128;
  constexpr int64_t kFew = 1 << 16;
  return std::max(kFew, entries * kPointsPerEntry);
}

}  // namespace vqllm
