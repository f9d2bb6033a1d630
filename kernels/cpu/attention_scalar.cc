#include "kernels/cpu/attention_scalar.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "vq/base/half.h"

namespace vqllm::cpu::scalar {
namespace {

template <typename T>
T Read(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace

float RowElement(const RowLayout& layout, const uint8_t* row, int64_t c) {
  switch (layout.kind) {
    case RowKind::kF32:
      return Read<float>(row + 4 * c);
    case RowKind::kF16:
      return HalfBitsToFloat(Read<uint16_t>(row + 2 * c));
    case RowKind::kBF16:
      return BFloat16BitsToFloat(Read<uint16_t>(row + 2 * c));
    case RowKind::kInt8:
    case RowKind::kInt4:
      break;
  }
  const int64_t half = layout.dim / 2;
  const bool wide = layout.kind == RowKind::kInt8;
  const int code = wide ? row[c] : c < half ? row[c] & 15 : row[c - half] >> 4;
  const uint8_t* numbers = row + layout.numbers + c / layout.group * (layout.symmetric ? 2 : 4);
  const float scale = HalfBitsToFloat(Read<uint16_t>(numbers));
  const float offset =
      layout.symmetric ? -scale * (wide ? 128.0f : 8.0f) : HalfBitsToFloat(Read<uint16_t>(numbers + 2));
  return scale * static_cast<float>(code) + offset;
}

void RowScores(const RowLayout& layout, const QueryQuad& quad, const uint8_t* const* rows, int64_t n,
               float* scores) {
  for (int64_t t = 0; t < n; ++t) {
    for (int h = 0; h < kQuad; ++h) {
      float sum = 0;
      for (int64_t c = 0; c < layout.dim; ++c)
        sum += quad.q[h * layout.dim + c] * RowElement(layout, rows[t], c);
      scores[t * kQuad + h] = sum;
    }
  }
}

void RowValues(const RowLayout& layout, const float* weights, int heads, const uint8_t* const* rows,
               int64_t n, float* out) {
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t c = 0; c < layout.dim; ++c) {
      const float value = RowElement(layout, rows[t], c);
      for (int h = 0; h < heads; ++h) out[h * layout.dim + c] += weights[t * kQuad + h] * value;
    }
  }
}

void SoftmaxTile(float* scores, int64_t n, float* largest, float* sums, float* keep) {
  for (int h = 0; h < kQuad; ++h) {
    float top = largest[h];
    for (int64_t t = 0; t < n; ++t) top = std::max(top, scores[t * kQuad + h]);
    keep[h] = largest[h] == top ? 1.0f : std::exp(largest[h] - top);
    float sum = 0;
    for (int64_t t = 0; t < n; ++t) sum += scores[t * kQuad + h] = std::exp(scores[t * kQuad + h] - top);
    largest[h] = top;
    sums[h] = sums[h] * keep[h] + sum;
  }
}

}  // namespace vqllm::cpu::scalar
