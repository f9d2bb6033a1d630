#pragma once

#include <cmath>
#include <cstdint>

namespace vqllm {

/// SplitMix64: one 64-bit state, the same numbers on every machine. Not for cryptography.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, 1), 53 bits.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  float Uniform(float low, float high) { return low + (high - low) * static_cast<float>(Uniform()); }
  /// Uniform in [0, n), n >= 1, by the high half of a product (bias below n / 2^64).
  uint64_t Below(uint64_t n) { return static_cast<uint64_t>((static_cast<Uint128>(Next()) * n) >> 64); }
  /// Standard normal by Box and Muller, one value a call.
  float Normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform()));
    return static_cast<float>(radius * std::cos(6.283185307179586 * Uniform()));
  }

 private:
  __extension__ typedef unsigned __int128 Uint128;  // GCC and clang have it; ISO C++ does not

  uint64_t state_;
};

}  // namespace vqllm
