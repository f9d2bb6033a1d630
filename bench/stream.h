#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "kernels/cpu/aligned.h"
#include "vq/base/multiversion.h"
#include "vq/base/parallel.h"

namespace vqllm::bench {

/// As much as leaves every cache that we know of: twice the largest L3.
inline constexpr int64_t kColdBytes = int64_t{512} << 20;

/// The xor of `streams` runs of `count` words each, side by side.
VQLLM_MULTIVERSION inline void ReadStreams(const uint64_t* words, int64_t count, int streams,
                                           uint64_t* sums) {
  for (int64_t i = 0; i < count; i += 8) {
    for (int s = 0; s < streams; ++s) {
      for (int64_t j = 0; j < 8; ++j) sums[j] ^= words[s * count + i + j];
    }
  }
}

/// Bytes a second of a plain read by as many threads, over memory that no cache holds. A core reaches more
/// with several streams of addresses than with one: the best of 1, 2, 4 and 8 streams counts, each tried
/// twice.
inline double StreamRate(int threads) {
  static const cpu::AlignedVector<uint64_t> memory(static_cast<size_t>(kColdBytes / 8), 1);
  SetThreads(threads);
  constexpr int64_t kPiece = 1 << 17;  // words
  double best = 0;
  for (const int streams : {1, 2, 4, 8, 1, 2, 4, 8}) {
    const auto start = std::chrono::steady_clock::now();
    ParallelFor(static_cast<int64_t>(memory.size()) / kPiece, 1, [&](int64_t piece, int64_t) {
      uint64_t sums[8] = {};
      ReadStreams(memory.data() + piece * kPiece, kPiece / streams, streams, sums);
      benchmark::DoNotOptimize(sums);
    });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(kColdBytes) / took.count());
  }
  return best;
}

}  // namespace vqllm::bench
