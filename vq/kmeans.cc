#include "vq/kmeans.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "vq/base/check.h"
#include "vq/base/multiversion.h"
#include "vq/base/parallel.h"
#include "vq/base/rng.h"

namespace vqllm {
namespace {

constexpr int64_t kChunk =
    2048;  // points of one piece of parallel work; sums are merged in the order of pieces
constexpr int kMaxPlusPlus = 1024;        // k-means++ costs entries passes over the points
constexpr int64_t kPointsPerEntry = 128;  // above kAllPoints, training sees this many points an entry
constexpr int64_t kAllPoints = 1 << 16;
constexpr int64_t kTile = 64;  // entries of one tile of scores that stays in registers and L1

/// scores[e] = sum_d x[d] c[d][e] - h[e] for `width` entries.
VQLLM_MULTIVERSION void PlainScores(const float* x, int64_t v, const float* columns, int64_t stride,
                                    const float* norms, int64_t width, float* scores) {
  for (int64_t e = 0; e < width; ++e) scores[e] = -norms[e];
  for (int64_t d = 0; d < v; ++d) {
    const float value = x[d];
    const float* column = columns + d * stride;
    for (int64_t e = 0; e < width; ++e) scores[e] += value * column[e];
  }
}

/// scores[e] = sum_d w[d] (x[d] - c[d][e] / 2) c[d][e].
VQLLM_MULTIVERSION void WeightedScores(const float* x, const float* w, int64_t v, const float* columns,
                                       int64_t stride, int64_t width, float* scores) {
  for (int64_t e = 0; e < width; ++e) scores[e] = 0;
  for (int64_t d = 0; d < v; ++d) {
    const float value = x[d];
    const float weight = w[d];
    const float* column = columns + d * stride;
    for (int64_t e = 0; e < width; ++e) scores[e] += weight * (value - 0.5f * column[e]) * column[e];
  }
}

VQLLM_MULTIVERSION float Largest(const float* scores, int64_t width) {
  float lanes[16];
  for (int64_t i = 0; i < 16; ++i) lanes[i] = scores[i];
  for (int64_t e = 16; e < width; e += 16) {
    for (int64_t i = 0; i < 16; ++i) lanes[i] = scores[e + i] > lanes[i] ? scores[e + i] : lanes[i];
  }
  return *std::max_element(lanes, lanes + 16);
}

float WeightedError(const float* x, const float* w, const float* c, int64_t v) {
  float error = 0;
  for (int64_t d = 0; d < v; ++d) error += (w ? w[d] : 1.0f) * (x[d] - c[d]) * (x[d] - c[d]);
  return error;
}

/// Points of a clustering, cut down to what training needs.
struct Training {
  std::vector<float> points;
  std::vector<float> weights;
  int64_t n;
  int64_t v;

  const float* Point(int64_t i) const { return points.data() + i * v; }
  const float* Weight(int64_t i) const { return weights.empty() ? nullptr : weights.data() + i * v; }
  MatrixView<const float> PointView(int64_t begin, int64_t count) const { return {Point(begin), count, v}; }
  MatrixView<const float> WeightView(int64_t begin, int64_t count) const {
    return weights.empty() ? MatrixView<const float>() : MatrixView<const float>(Weight(begin), count, v);
  }
};

/// All points, or an evenly spread random sample of `limit` (one of each of `limit` equal runs).
Training Sample(MatrixView<const float> points, MatrixView<const float> weights, int64_t limit, Rng& rng) {
  Training t{.points = {}, .weights = {}, .n = std::min(points.rows, limit), .v = points.cols};
  for (int64_t i = 0; i < t.n; ++i) {
    const int64_t begin = points.rows * i / t.n;
    const int64_t end = points.rows * (i + 1) / t.n;
    const int64_t pick = begin + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(end - begin)));
    t.points.insert(t.points.end(), points.Row(pick), points.Row(pick) + t.v);
    if (weights.data) t.weights.insert(t.weights.end(), weights.Row(pick), weights.Row(pick) + t.v);
  }
  return t;
}

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
        const double weight = t_.weights.empty() ? 1.0 : t_.Weight(i)[d];
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

NearestEntry::NearestEntry(MatrixView<const float> entries)
    : count_(entries.rows), padded_((entries.rows + 15) / 16 * 16), v_(entries.cols) {
  columns_.resize(static_cast<size_t>(v_ * padded_));
  norms_.assign(static_cast<size_t>(padded_), std::numeric_limits<float>::infinity());
  for (int64_t e = 0; e < count_; ++e) {
    float norm = 0;
    for (int64_t d = 0; d < v_; ++d) {
      const float value = entries(e, d);
      columns_[static_cast<size_t>(d * padded_ + e)] = value;
      rows_.push_back(value);
      norm += value * value;
    }
    norms_[static_cast<size_t>(e)] = norm / 2;
  }
}

void NearestEntry::Find(MatrixView<const float> points, MatrixView<const float> weights, int32_t* codes,
                        float* errors) const {
  float scores[kTile];
  for (int64_t i = 0; i < points.rows; ++i) {
    const float* x = points.Row(i);
    const float* w = weights.data ? weights.Row(i) : nullptr;
    float best = -std::numeric_limits<float>::infinity();
    int64_t code = 0;
    for (int64_t begin = 0; begin < padded_; begin += kTile) {
      const int64_t width = std::min(kTile, padded_ - begin);
      if (w) {
        WeightedScores(x, w, v_, columns_.data() + begin, padded_, width, scores);
        for (int64_t e = count_ - begin; e < width; ++e) scores[e] = -std::numeric_limits<float>::infinity();
      } else {
        PlainScores(x, v_, columns_.data() + begin, padded_, norms_.data() + begin, width, scores);
      }
      const float largest = Largest(scores, width);
      if (largest > best) {
        best = largest;
        code = begin + (std::find(scores, scores + width, largest) - scores);
      }
    }
    codes[i] = static_cast<int32_t>(code);
    if (errors) errors[i] = WeightedError(x, w, rows_.data() + code * v_, v_);
  }
}

KMeansResult KMeans(MatrixView<const float> points, MatrixView<const float> weights,
                    const KMeansOptions& options) {
  VQLLM_CHECK(points.rows >= 1 && points.cols >= 1 && points.cols <= 16 && options.entries >= 1);
  Rng rng(options.seed);
  const int64_t entries = options.entries;
  const Training t = Sample(points, weights, std::max(kAllPoints, entries * kPointsPerEntry), rng);
  KMeansResult result;
  result.centroids.resize(static_cast<size_t>(entries * t.v));

  // Few distinct points: each becomes an entry, and the error is 0. (A sample is cut only far above the
  // number of entries.)
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

}  // namespace vqllm
