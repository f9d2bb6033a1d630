#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/model/config.h"
#include "vq/base/check.h"

namespace vqllm {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

/// The pair (fractional, counted from 0) that turns `rotations` times within the original context.
double YarnPair(const RopeConfig& rope, int head_dim, double rotations) {
  return head_dim * std::log(static_cast<double>(rope.original_positions) / (rotations * kTwoPi)) /
         (2 * std::log(rope.theta));
}

double Llama3Frequency(const RopeConfig& rope, double frequency) {
  const double wavelength = kTwoPi / frequency;
  const double original = static_cast<double>(rope.original_positions);
  if (wavelength < original / rope.high_frequency) return frequency;
  if (wavelength > original / rope.low_frequency) return frequency / rope.factor;
  const double smooth =
      (original / wavelength - rope.low_frequency) / (rope.high_frequency - rope.low_frequency);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

double YarnFrequency(const RopeConfig& rope, int head_dim, int pair, double frequency) {
  const double low = std::max(0.0, std::floor(YarnPair(rope, head_dim, rope.beta_fast)));
  const double high = std::min(head_dim - 1.0, std::ceil(YarnPair(rope, head_dim, rope.beta_slow)));
  const double ramp = std::clamp((pair - low) / std::max(high - low, 0.001), 0.0, 1.0);
  return frequency / rope.factor * ramp + frequency * (1 - ramp);
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeConfig& rope, int head_dim) {
  std::vector<double> frequencies;
  for (int pair = 0; pair < head_dim / 2; ++pair) {
    double frequency = std::pow(rope.theta, -2.0 * pair / head_dim);
    switch (rope.scaling) {
      case RopeScaling::kNone:
        break;
      case RopeScaling::kLinear:
        frequency /= rope.factor;
        break;
      case RopeScaling::kLlama3:
        frequency = Llama3Frequency(rope, frequency);
        break;
      case RopeScaling::kYarn:
        frequency = YarnFrequency(rope, head_dim, pair, frequency);
        break;
    }
    if (!rope.frequency_divisors.empty()) frequency /= rope.frequency_divisors[static_cast<size_t>(pair)];
    frequencies.push_back(frequency);
  }
  return frequencies;
}

cpu::RopeTable MakeRopeTable(const RopeConfig& rope, int head_dim, int64_t positions) {
  const std::vector<double> frequencies = RopeFrequencies(rope, head_dim);
  double attention = 1;
  if (rope.scaling == RopeScaling::kYarn) {
    attention = rope.attention_factor > 0 ? rope.attention_factor : 0.1 * std::log(rope.factor) + 1;
  }
  cpu::RopeTable table;
  table.dim = head_dim;
  table.cos.reserve(static_cast<size_t>(positions) * frequencies.size());
  table.sin.reserve(static_cast<size_t>(positions) * frequencies.size());
  for (int64_t position = 0; position < positions; ++position) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      table.cos.push_back(static_cast<float>(std::cos(angle) * attention));
      table.sin.push_back(static_cast<float>(std::sin(angle) * attention));
    }
  }
  return table;
}

}  // namespace vqllm
