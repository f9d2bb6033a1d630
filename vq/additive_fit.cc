#include "vq/additive_fit.h"

#include <algorithm>

#include "vq/base/math.h"
#include "vq/base/parallel.h"
#include "vq/codebook.h"

namespace vqllm {
namespace {

constexpr int kSteps = 12;      // of conjugate gradients; codes change afterwards anyway
constexpr int64_t kPieces = 8;  // partial sums, each as large as all entries
constexpr int64_t kLeastChunk = 2048;

}  // namespace

AdditiveFit::AdditiveFit(MatrixView<const float> points, MatrixView<const float> weights,
                         std::span<const uint16_t> codes, const std::vector<std::vector<float>>& stages)
    : points_(points), weights_(weights), codes_(codes) {
  const int64_t v = points.cols;
  offsets_.push_back(0);
  for (const std::vector<float>& book : stages)
    offsets_.push_back(offsets_.back() + static_cast<int64_t>(book.size()) / v);
  diagonal_.resize(static_cast<size_t>(offsets_.back() * v));
  counts_.resize(static_cast<size_t>(offsets_.back()));
  size_t at = 0;
  for (int64_t i = 0; i < points.rows; ++i) {
    for (size_t m = 0; m < stages.size(); ++m) {
      const int64_t entry = offsets_[m] + codes_[at++];
      ++counts_[static_cast<size_t>(entry)];
      for (int64_t d = 0; d < v; ++d)
        diagonal_[static_cast<size_t>(entry * v + d)] += weights.data ? weights(i, d) : 1.0;
    }
  }
}

void AdditiveFit::Scatter(const std::vector<double>& entries, bool with_points,
                          std::vector<double>& out) const {
  const int64_t n = points_.rows;
  const int64_t v = points_.cols;
  const int64_t stages = static_cast<int64_t>(offsets_.size()) - 1;
  const int64_t chunk = std::max(kLeastChunk, CeilDiv(n, kPieces));
  std::vector<std::vector<double>> partial(static_cast<size_t>(CeilDiv(n, chunk)));
  ParallelFor(n, chunk, [&](int64_t begin, int64_t end) {
    std::vector<double>& sums = partial[static_cast<size_t>(begin / chunk)];
    sums.resize(out.size());
    double rest[kMaxSubvector];
    for (int64_t i = begin; i < end; ++i) {
      const uint16_t* codes = codes_.data() + i * stages;
      for (int64_t d = 0; d < v; ++d) rest[d] = with_points ? points_(i, d) : 0.0;
      for (int64_t m = 0; m < stages; ++m) {
        const double* entry = entries.data() + (offsets_[static_cast<size_t>(m)] + codes[m]) * v;
        for (int64_t d = 0; d < v; ++d) rest[d] -= entry[d];
      }
      if (weights_.data) {
        for (int64_t d = 0; d < v; ++d) rest[d] *= weights_(i, d);
      }
      for (int64_t m = 0; m < stages; ++m) {
        double* sum = sums.data() + (offsets_[static_cast<size_t>(m)] + codes[m]) * v;
        for (int64_t d = 0; d < v; ++d) sum[d] += rest[d];
      }
    }
  });
  for (const std::vector<double>& sums : partial) {
    for (size_t i = 0; i < out.size(); ++i) out[i] += sums[i];
  }
}

void AdditiveFit::Improve(std::vector<std::vector<float>>& stages) const {
  const size_t v = static_cast<size_t>(points_.cols);
  const size_t size = diagonal_.size();
  std::vector<double> x;
  for (const std::vector<float>& book : stages) x.insert(x.end(), book.begin(), book.end());
  std::vector<double> residual(size);
  Scatter(x, true, residual);
  std::vector<double> direction(size);
  std::vector<double> product(size);
  std::vector<double> energy(v);  // <residual, preconditioned residual> of each dimension
  for (int step = 0; step < kSteps; ++step) {
    std::vector<double> before = energy;
    std::fill(energy.begin(), energy.end(), 0.0);
    for (size_t i = 0; i < size; ++i) {
      if (diagonal_[i] > 0) energy[i % v] += residual[i] * residual[i] / diagonal_[i];
    }
    for (size_t i = 0; i < size; ++i) {
      const double fresh = diagonal_[i] > 0 ? residual[i] / diagonal_[i] : 0;
      direction[i] = fresh + (before[i % v] > 0 ? energy[i % v] / before[i % v] * direction[i] : 0);
    }
    std::fill(product.begin(), product.end(), 0.0);
    Scatter(direction, false, product);  // minus the normal matrix times direction
    std::vector<double> curvature(v);
    for (size_t i = 0; i < size; ++i) curvature[i % v] -= direction[i] * product[i];
    for (size_t i = 0; i < size; ++i) {
      if (!(curvature[i % v] > 0)) continue;  // solved
      const double length = energy[i % v] / curvature[i % v];
      x[i] += length * direction[i];
      residual[i] += length * product[i];
    }
  }
  size_t at = 0;
  for (std::vector<float>& book : stages) {
    for (float& value : book) value = static_cast<float>(x[at++]);
  }
}

std::vector<AdditiveFit::EntryId> AdditiveFit::Unused() const {
  std::vector<EntryId> unused;
  for (size_t m = 0; m + 1 < offsets_.size(); ++m) {
    for (int64_t entry = offsets_[m]; entry < offsets_[m + 1]; ++entry) {
      if (counts_[static_cast<size_t>(entry)] == 0) unused.push_back({m, entry - offsets_[m]});
    }
  }
  return unused;
}

void AdditiveFit::MeetPoint(int64_t point, EntryId entry, std::vector<std::vector<float>>& stages) const {
  const int64_t v = points_.cols;
  for (int64_t d = 0; d < v; ++d) {
    double rest = points_(point, d);
    for (size_t m = 0; m < stages.size(); ++m) {
      const int64_t code = codes_[static_cast<size_t>(point) * stages.size() + m];
      if (m != entry.stage) rest -= stages[m][static_cast<size_t>(code * v + d)];
    }
    stages[entry.stage][static_cast<size_t>(entry.code * v + d)] = static_cast<float>(rest);
  }
}

}  // namespace vqllm
