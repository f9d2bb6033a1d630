#include "vq/codebook.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "vq/base/check.h"
#include "vq/base/math.h"
#include "vq/base/multiversion.h"

namespace vqllm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Sixteen entries side by side: one register of AVX-512, two of AVX2, four of SSE or NEON.
constexpr int64_t kLanes = 16;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t IntLanes __attribute__((vector_size(kLanes * sizeof(int32_t))));

// Points searched together: a block of entries is then loaded once for all of them, and their chains of
// additions overlap.
constexpr int64_t kTogether = 4;

/// The nearest entry of each of kTogether points x [kTogether, v]; w null or same shape; columns [v, padded].
VQLLM_MULTIVERSION void Search(const float* x, const float* w, int64_t v, const float* columns,
                               int64_t padded, float* distances, int32_t* codes) {
  Lanes best[kTogether];
  IntLanes block[kTogether];
  for (int64_t p = 0; p < kTogether; ++p) {
    best[p] = Lanes{} + kInfinity;
    block[p] = IntLanes{};
  }
  for (int64_t begin = 0; begin < padded; begin += kLanes) {
    Lanes sum[kTogether] = {};
    for (int64_t d = 0; d < v; ++d) {
      Lanes column;
      std::memcpy(&column, columns + d * padded + begin, sizeof(column));
      for (int64_t p = 0; p < kTogether; ++p) {
        const Lanes difference = x[p * v + d] - column;
        sum[p] += w ? difference * difference * w[p * v + d] : difference * difference;
      }
    }
    for (int64_t p = 0; p < kTogether; ++p) {
      const IntLanes closer = sum[p] < best[p];
      best[p] = closer ? sum[p] : best[p];
      block[p] = closer ? IntLanes{} + static_cast<int32_t>(begin) : block[p];
    }
  }
  for (int64_t p = 0; p < kTogether; ++p) {
    distances[p] = kInfinity;
    codes[p] = 0;
    for (int64_t i = 0; i < kLanes; ++i) {
      const int32_t code = block[p][i] + static_cast<int32_t>(i);
      if (best[p][i] < distances[p] || (best[p][i] == distances[p] && code < codes[p])) {
        distances[p] = best[p][i];
        codes[p] = code;
      }
    }
  }
}

/// See Codebook::Collect. Returns the new count.
VQLLM_MULTIVERSION int64_t CollectBest(const float* x, const float* w, int64_t v, const float* columns,
                                       int64_t padded, int32_t origin, Codebook::Candidate* best,
                                       int64_t capacity, int64_t count) {
  float limit = count < capacity ? kInfinity : best[capacity - 1].error;
  for (int64_t begin = 0; begin < padded; begin += kLanes) {
    Lanes sum = {};
    for (int64_t d = 0; d < v; ++d) {
      Lanes column;
      std::memcpy(&column, columns + d * padded + begin, sizeof(column));
      const Lanes difference = x[d] - column;
      sum += w ? difference * difference * w[d] : difference * difference;
    }
    const IntLanes closer = sum < limit;
    int32_t any = 0;
    for (int64_t i = 0; i < kLanes; ++i) any |= closer[i];
    if (any == 0) continue;
    for (int64_t i = 0; i < kLanes; ++i) {
      if (!(sum[i] < limit)) continue;
      int64_t at = count < capacity ? count++ : capacity - 1;
      for (; at > 0 && best[at - 1].error > sum[i]; --at) best[at] = best[at - 1];
      best[at] = {sum[i], origin, static_cast<int32_t>(begin + i)};
      if (count == capacity) limit = best[capacity - 1].error;
    }
  }
  return count;
}

}  // namespace

Codebook::Codebook(MatrixView<const float> entries)
    : padded_(RoundUp(entries.rows, kLanes)), v_(entries.cols) {
  VQLLM_CHECK(entries.rows >= 1 && v_ >= 1 && v_ <= kMaxSubvector, "{} entries of {}", entries.rows, v_);
  columns_.assign(static_cast<size_t>(v_ * padded_), std::numeric_limits<float>::quiet_NaN());
  rows_.reserve(static_cast<size_t>(entries.rows * v_));
  for (int64_t e = 0; e < entries.rows; ++e) {
    rows_.insert(rows_.end(), entries.Row(e), entries.Row(e) + v_);
    for (int64_t d = 0; d < v_; ++d) columns_[static_cast<size_t>(d * padded_ + e)] = entries(e, d);
  }
}

void Codebook::Find(MatrixView<const float> points, MatrixView<const float> weights, int32_t* codes,
                    float* errors) const {
  float x[kTogether * kMaxSubvector];
  float w[kTogether * kMaxSubvector];
  float distances[kTogether];
  int32_t found[kTogether];
  for (int64_t begin = 0; begin < points.rows; begin += kTogether) {
    const int64_t count = std::min(kTogether, points.rows - begin);
    for (int64_t p = 0; p < kTogether; ++p) {  // the last point stands in for those behind it
      const int64_t point = begin + std::min(p, count - 1);
      std::copy_n(points.Row(point), v_, x + p * v_);
      if (weights.data) std::copy_n(weights.Row(point), v_, w + p * v_);
    }
    Search(x, weights.data ? w : nullptr, v_, columns_.data(), padded_, distances, found);
    std::copy_n(found, count, codes + begin);
    if (errors) std::copy_n(distances, count, errors + begin);
  }
}

void Codebook::Collect(const float* x, const float* weights, int32_t origin, Candidate* best,
                       int64_t capacity, int64_t* count) const {
  *count = CollectBest(x, weights, v_, columns_.data(), padded_, origin, best, capacity, *count);
}

}  // namespace vqllm
