#include "vq/additive.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "vq/additive_fit.h"
#include "vq/base/check.h"
#include "vq/base/half.h"
#include "vq/base/parallel.h"
#include "vq/kmeans.h"

namespace vqllm {
namespace {

constexpr int64_t kChunk = 256;  // points encoded in one piece of parallel work
constexpr float kLargestHalf = 65504;

/// Entries as they will be stored: later steps then see the error that the rounding leaves.
void RoundToHalf(std::vector<float>& entries) {
  for (float& value : entries) value = Half(std::clamp(value, -kLargestHalf, kLargestHalf));
}

MatrixView<const float> Slice(MatrixView<const float> m, int64_t begin, int64_t count) {
  if (!m.data) return m;
  return {m.Row(begin), count, m.cols, m.stride};
}

/// Residual start: the entries of each stage by k-means on what the stages before leave over.
std::vector<std::vector<float>> TrainResidual(MatrixView<const float> points, MatrixView<const float> weights,
                                              std::span<const int> entries, const AdditiveOptions& options) {
  const int64_t n = points.rows;
  const int64_t v = points.cols;
  std::vector<std::vector<float>> stages;
  std::vector<float> rest;
  MatrixView<const float> view = points;
  std::vector<int32_t> codes(static_cast<size_t>(n));
  for (size_t stage = 0; stage < entries.size(); ++stage) {
    // A start that least squares refines need not have converged.
    const int iterations =
        options.rounds > 0 && entries.size() > 1 ? std::min(options.iterations, 8) : options.iterations;
    const KMeansOptions kmeans{
        .entries = entries[stage], .iterations = iterations, .seed = options.seed + stage};
    std::vector<float>& book = stages.emplace_back(KMeans(view, weights, kmeans).centroids);
    RoundToHalf(book);
    if (stage + 1 == entries.size()) break;
    if (rest.empty()) {
      for (int64_t i = 0; i < n; ++i) rest.insert(rest.end(), points.Row(i), points.Row(i) + v);
      view = {rest.data(), n, v};
    }
    const Codebook codebook({book.data(), entries[stage], v});
    ParallelFor(n, kChunk, [&](int64_t begin, int64_t end) {
      codebook.Find(Slice(view, begin, end - begin), Slice(weights, begin, end - begin), codes.data() + begin,
                    nullptr);
      for (int64_t i = begin; i < end; ++i) {
        const float* entry = codebook.Entry(codes[static_cast<size_t>(i)]);
        for (int64_t d = 0; d < v; ++d) rest[static_cast<size_t>(i * v + d)] -= entry[d];
      }
    });
  }
  return stages;
}

/// Every entry that no code points at takes the place of the entry in the sum of one of the worst points, so
/// that this point would be met exactly.
void Respawn(const AdditiveFit& fit, const std::vector<float>& errors,
             std::vector<std::vector<float>>& stages) {
  std::vector<int64_t> worst(errors.size());
  std::iota(worst.begin(), worst.end(), 0);
  std::stable_sort(worst.begin(), worst.end(), [&](int64_t a, int64_t b) {
    return errors[static_cast<size_t>(a)] > errors[static_cast<size_t>(b)];
  });
  size_t next = 0;
  for (const AdditiveFit::EntryId& unused : fit.Unused()) {
    if (next == worst.size() || errors[static_cast<size_t>(worst[next])] == 0) return;
    fit.MeetPoint(worst[next++], unused, stages);
  }
}

}  // namespace

AdditiveEncoder::AdditiveEncoder(const std::vector<std::vector<float>>& stages, int64_t v, int beam)
    : v_(v), beam_(beam) {
  VQLLM_CHECK(beam >= 1 && !stages.empty());
  for (const std::vector<float>& entries : stages) {
    stages_.emplace_back(
        MatrixView<const float>(entries.data(), static_cast<int64_t>(entries.size()) / v, v));
  }
}

void AdditiveEncoder::EncodeGreedily(MatrixView<const float> points, MatrixView<const float> weights,
                                     uint16_t* codes, float* errors) const {
  const int64_t n = points.rows;
  const int64_t stages = static_cast<int64_t>(stages_.size());
  std::vector<float> rest(static_cast<size_t>(n * v_));
  for (int64_t i = 0; i < n; ++i) std::copy_n(points.Row(i), v_, rest.data() + i * v_);
  std::vector<int32_t> found(static_cast<size_t>(n));
  for (int64_t m = 0; m < stages; ++m) {
    const Codebook& book = stages_[static_cast<size_t>(m)];
    book.Find({rest.data(), n, v_}, weights, found.data(), errors);
    for (int64_t i = 0; i < n; ++i) {
      const int32_t code = found[static_cast<size_t>(i)];
      codes[i * stages + m] = static_cast<uint16_t>(code);
      for (int64_t d = 0; d < v_; ++d) rest[static_cast<size_t>(i * v_ + d)] -= book.Entry(code)[d];
    }
  }
}

void AdditiveEncoder::Encode(MatrixView<const float> points, MatrixView<const float> weights, uint16_t* codes,
                             float* errors) const {
  if (beam_ == 1 || stages_.size() == 1) return EncodeGreedily(points, weights, codes, errors);
  const size_t v = static_cast<size_t>(v_);
  const size_t stages = stages_.size();
  struct State {
    float rest[kMaxSubvector];
    uint16_t codes[8];
  };
  VQLLM_CHECK(stages <= std::size(State{}.codes));
  std::vector<State> now(static_cast<size_t>(beam_));
  std::vector<State> next(static_cast<size_t>(beam_));
  std::vector<Codebook::Candidate> best(static_cast<size_t>(beam_));
  for (int64_t i = 0; i < points.rows; ++i) {
    const float* w = weights.data ? weights.Row(i) : nullptr;
    std::copy_n(points.Row(i), v, now[0].rest);
    int64_t alive = 1;
    for (size_t m = 0; m < stages; ++m) {
      const int64_t capacity = m + 1 == stages ? 1 : beam_;
      int64_t count = 0;
      for (int64_t b = 0; b < alive; ++b) {
        stages_[m].Collect(now[static_cast<size_t>(b)].rest, w, static_cast<int32_t>(b), best.data(),
                           capacity, &count);
      }
      if (count == 0) best[static_cast<size_t>(count++)] = {};  // a NaN: nothing is nearest
      for (int64_t b = 0; b < count; ++b) {
        const Codebook::Candidate& candidate = best[static_cast<size_t>(b)];
        State& state = next[static_cast<size_t>(b)];
        state = now[static_cast<size_t>(candidate.origin)];
        state.codes[m] = static_cast<uint16_t>(candidate.code);
        const float* entry = stages_[m].Entry(candidate.code);
        for (size_t d = 0; d < v; ++d) state.rest[d] -= entry[d];
      }
      alive = count;
      now.swap(next);
    }
    std::copy_n(now[0].codes, stages, codes + i * static_cast<int64_t>(stages));
    if (errors) errors[i] = best[0].error;
  }
}

std::vector<std::vector<float>> TrainAdditive(MatrixView<const float> points, MatrixView<const float> weights,
                                              std::span<const int> entries, const AdditiveOptions& options) {
  std::vector<std::vector<float>> stages = TrainResidual(points, weights, entries, options);
  if (stages.size() == 1) return stages;
  const int64_t n = points.rows;
  std::vector<uint16_t> codes(static_cast<size_t>(n) * stages.size());
  std::vector<float> errors(static_cast<size_t>(n));
  double before = std::numeric_limits<double>::infinity();
  std::vector<std::vector<float>> best;
  for (int round = 0; round <= options.rounds && options.rounds > 0; ++round) {
    const AdditiveEncoder encoder(stages, points.cols, options.beam);
    ParallelFor(n, kChunk, [&](int64_t begin, int64_t end) {
      encoder.Encode(Slice(points, begin, end - begin), Slice(weights, begin, end - begin),
                     codes.data() + begin * static_cast<int64_t>(stages.size()), errors.data() + begin);
    });
    const double error = std::accumulate(errors.begin(), errors.end(), 0.0);
    if (error < before) best = stages;
    // Below a gain of 0.01 % a round the rest is not worth its time.
    if (round == options.rounds || error > before * 0.9999 || error == 0) break;
    before = error;
    AdditiveFit fit(points, weights, codes, stages);
    fit.Improve(stages);
    Respawn(fit, errors, stages);
    for (std::vector<float>& book : stages) RoundToHalf(book);
  }
  return best.empty() ? stages : best;
}

}  // namespace vqllm
