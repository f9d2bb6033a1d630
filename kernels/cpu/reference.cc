#include "kernels/cpu/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vq/quantizer.h"

namespace vqllm::reference {
namespace {

std::vector<float> Dense(const Tensor& weights) {
  std::vector<float> w(static_cast<size_t>(weights.rows * weights.cols));
  Dequantize(weights, 0, {w.data(), weights.rows, weights.cols});
  return w;
}

}  // namespace

void MatMul(MatrixView<const float> x, const Tensor& weights, std::span<const float> bias,
            MatrixView<float> y) {
  const std::vector<float> w = Dense(weights);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t r = 0; r < weights.rows; ++r) {
      double sum = bias.empty() ? 0.0 : static_cast<double>(bias[static_cast<size_t>(r)]);
      for (int64_t c = 0; c < weights.cols; ++c) {
        sum += static_cast<double>(x(i, c)) * w[static_cast<size_t>(r * weights.cols + c)];
      }
      y(i, r) = static_cast<float>(sum);
    }
  }
}

void MatMulMagnitude(MatrixView<const float> x, const Tensor& weights, MatrixView<float> y) {
  const std::vector<float> w = Dense(weights);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t r = 0; r < weights.rows; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < weights.cols; ++c) {
        sum += std::fabs(static_cast<double>(x(i, c)) * w[static_cast<size_t>(r * weights.cols + c)]);
      }
      y(i, r) = static_cast<float>(sum);
    }
  }
}

void Rotate(const cpu::RopeTable& rope, int64_t position, float* head) {
  const int half = rope.dim / 2;
  for (int j = 0; j < half; ++j) {
    const double c = rope.cos[static_cast<size_t>(position * half + j)];
    const double s = rope.sin[static_cast<size_t>(position * half + j)];
    const double a = head[j];
    const double b = head[j + half];
    head[j] = static_cast<float>(a * c - b * s);
    head[j + half] = static_cast<float>(b * c + a * s);
  }
}

KvSource SourceOf(int sinks, int window, int64_t sliding_window, int64_t position, int64_t token,
                  int64_t fresh) {
  if (token > position) return KvSource::kUnseen;
  if (token < sinks) return KvSource::kExact;
  if (sliding_window > 0 && token <= position - sliding_window) return KvSource::kUnseen;
  return token > position - window || token >= fresh ? KvSource::kExact : KvSource::kStored;
}

std::vector<double> Distances(std::span<const double> x, std::span<const Half> entries) {
  std::vector<double> distances(entries.size() / x.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    const double difference = x[i % x.size()] - entries[i];
    distances[i / x.size()] += difference * difference;
  }
  return distances;
}

void Attend(std::span<const float> q, MatrixView<const float> keys, MatrixView<const float> values,
            double scale, std::span<float> out) {
  std::vector<double> p(static_cast<size_t>(keys.rows));
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t t = 0; t < keys.rows; ++t) {
    double dot = 0;
    for (size_t c = 0; c < q.size(); ++c) dot += static_cast<double>(q[c]) * keys(t, static_cast<int64_t>(c));
    p[static_cast<size_t>(t)] = dot * scale;
    largest = std::max(largest, dot * scale);
  }
  double total = 0;
  for (double& value : p) total += value = std::exp(value - largest);
  for (size_t c = 0; c < out.size(); ++c) {
    double sum = 0;
    for (int64_t t = 0; t < keys.rows; ++t)
      sum += p[static_cast<size_t>(t)] * values(t, static_cast<int64_t>(c));
    out[c] = keys.rows > 0 ? static_cast<float>(sum / total) : 0.0f;
  }
}

}  // namespace vqllm::reference
