// Decode attention on the CPU: microseconds of one layer, GB/s of keys and values beside what a plain read of
// memory reaches at the moment, for each KV format. 32 query heads on 8 KV heads of 128, as Llama-3-8B.
//
//   cpu_attention_bench --benchmark_repetitions=7 --benchmark_enable_random_interleaving=true
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "bench/stream.h"
#include "kernels/cpu/kv_layer.h"
#include "vq/base/parallel.h"
#include "vq/base/rng.h"

namespace vqllm::cpu {
namespace {

constexpr int kKvHeads = 8;
constexpr int kHeadDim = 128;
constexpr int kPageTokens = 64;
constexpr int64_t kWidth = int64_t{kKvHeads} * kHeadDim;

// Layers are visited in turn, as a model does: together at least this much is read before one comes round
// again, more than a core's own caches hold.
constexpr int64_t kColdBytes = int64_t{96} << 20;

RopeTable Rope(int64_t positions) {
  RopeTable rope;
  rope.dim = kHeadDim;
  rope.cos.assign(static_cast<size_t>(positions * kHeadDim / 2), 0.8f);
  rope.sin.assign(rope.cos.size(), 0.6f);
  return rope;
}

KvSide Side(const std::string& name, Rng& rng) {
  KvSide side;
  side.format = ParseFormat(name);
  for (const int entries : side.format.entries) {
    std::vector<Half>& book = side.codebooks.emplace_back();
    for (int64_t i = 0; i < kWidth * entries; ++i) book.push_back(Half(rng.Normal()));
  }
  return side;
}

/// Layers full of random tokens.
struct Cache {
  RopeTable rope;
  std::vector<int32_t> pages;
  std::vector<std::unique_ptr<KvLayer>> layers;
  std::vector<float> q;

  Cache(const std::string& format, int64_t tokens, int group) : rope(Rope(tokens)) {
    Rng rng(1);
    pages.resize(static_cast<size_t>((tokens + kPageTokens - 1) / kPageTokens));
    std::iota(pages.begin(), pages.end(), 0);
    KvLayerSpec spec;
    spec.key = Side(format, rng);
    spec.value = Side(format, rng);
    spec.kv_heads = kKvHeads;
    spec.head_dim = kHeadDim;
    spec.page_tokens = kPageTokens;
    constexpr int64_t kChunk = 512;
    std::vector<float> x(static_cast<size_t>(kChunk * kWidth));
    for (float& value : x) value = rng.Normal();
    do {
      layers.push_back(std::make_unique<KvLayer>(spec, static_cast<int64_t>(pages.size()), 1));
      for (int64_t past = 0; past < tokens; past += kChunk) {
        const int64_t n = std::min(kChunk, tokens - past);
        const KvRow row{.count = n, .past = past, .pages = pages};
        layers.back()->Append({x.data(), n, kWidth}, {x.data(), n, kWidth}, {&row, 1}, rope);
      }
    } while (static_cast<int64_t>(layers.size()) * layers[0]->bytes_per_token() * tokens < kColdBytes &&
             layers.size() < 8);
    q.resize(static_cast<size_t>(kWidth * group));
    for (float& value : q) value = rng.Normal();
  }
};

/// One cache is kept at a time: filling one takes longer than measuring it.
const Cache& CacheOf(const std::string& format, int64_t tokens, int group) {
  static std::unique_ptr<Cache> cache;
  static std::string key;
  const std::string wanted = fmt::format("{} {} {}", format, tokens, group);
  if (key != wanted) {
    cache.reset();
    cache = std::make_unique<Cache>(format, tokens, group);
    key = wanted;
  }
  return *cache;
}

void Decode(benchmark::State& state, const std::string& format, int group) {
  const int64_t tokens = state.range(0);
  const int threads = static_cast<int>(state.range(1));
  const Cache& cache = CacheOf(format, tokens, group);
  SetThreads(threads);
  const int64_t width = static_cast<int64_t>(cache.q.size());
  std::vector<float> out(cache.q.size());
  const KvRow row{.count = 1, .past = tokens - 1, .pages = cache.pages};
  size_t layer = 0;
  for (auto _ : state) {
    cache.layers[layer]->Attend({cache.q.data(), 1, width}, {&row, 1}, cache.rope, {out.data(), 1, width});
    benchmark::DoNotOptimize(out.data());
    layer = (layer + 1) % cache.layers.size();
  }
  const double bytes = static_cast<double>(cache.layers[0]->bytes_per_token() * tokens);
  state.counters["GB/s"] = benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate,
                                              benchmark::Counter::kIs1000);
  state.counters["stream"] = bench::StreamRate(threads) * 1e-9;
  state.counters["MB"] = bytes * 1e-6;
}

void Append(benchmark::State& state, const std::string& format) {
  Rng rng(1);
  const int64_t tokens = state.range(0);
  SetThreads(static_cast<int>(state.range(1)));
  KvLayerSpec spec;
  spec.key = Side(format, rng);
  spec.value = Side(format, rng);
  spec.kv_heads = kKvHeads;
  spec.head_dim = kHeadDim;
  KvLayer layer(spec, (tokens + 31) / 32, 1);
  std::vector<int32_t> pages(static_cast<size_t>((tokens + 31) / 32));
  std::iota(pages.begin(), pages.end(), 0);
  const RopeTable rope = Rope(tokens);
  std::vector<float> x(static_cast<size_t>(tokens * kWidth));
  for (float& value : x) value = rng.Normal();
  const KvRow row{.count = tokens, .pages = pages};
  for (auto _ : state) layer.Append({x.data(), tokens, kWidth}, {x.data(), tokens, kWidth}, {&row, 1}, rope);
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsIterationInvariantRate);
}

void Prefill(benchmark::State& state, const std::string& format) {
  constexpr int kGroup = 4;
  const int64_t tokens = state.range(0);
  const Cache& cache = CacheOf(format, tokens, kGroup);
  SetThreads(static_cast<int>(state.range(1)));
  const int64_t width = kWidth * kGroup;
  std::vector<float> q(static_cast<size_t>(tokens * width), 0.01f);
  std::vector<float> out(q.size());
  const KvRow row{.count = tokens, .pages = cache.pages};
  for (auto _ : state) {
    cache.layers[0]->Attend({q.data(), tokens, width}, {&row, 1}, cache.rope, {out.data(), tokens, width});
  }
  // Half of the scores are masked; two products of a score and of a value each.
  state.counters["GFLOP/s"] =
      benchmark::Counter(2.0 * static_cast<double>(tokens * tokens * width) * 1e-9,
                         benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

const char* const kFormats[] = {"fp16", "int8-row", "int4-row", "cq-4", "cq-2", "cq-1"};

void RegisterAll() {
  for (const char* format : kFormats) {
    for (const int group : {4, 1}) {
      benchmark::RegisterBenchmark(fmt::format("decode/{}/group{}", format, group).c_str(),
                                   [=](benchmark::State& state) { Decode(state, format, group); })
          ->ArgNames({"tokens", "threads"})
          ->ArgsProduct({{4096, 16384}, {1, 2}})
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
  for (const char* format : kFormats) {
    benchmark::RegisterBenchmark(fmt::format("append/{}", format).c_str(),
                                 [=](benchmark::State& state) { Append(state, format); })
        ->ArgNames({"tokens", "threads"})
        ->ArgsProduct({{1, 512}, {1, 2}})
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
  for (const char* format : {"fp16", "int4-row", "cq-2"}) {
    benchmark::RegisterBenchmark(fmt::format("prefill/{}", format).c_str(),
                                 [=](benchmark::State& state) { Prefill(state, format); })
        ->ArgNames({"tokens", "threads"})
        ->ArgsProduct({{512, 2048}, {1, 2}})
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
}

const bool registered = (RegisterAll(), true);

}  // namespace
}  // namespace vqllm::cpu
