// y = x W^T at few rows of x with cold weights: as many copies of a matrix as it takes to leave every cache,
// one after the other, as a decode step meets its layers. Beside each figure stands a plain read of memory in
// the same minute: "of_stream" is the share of that rate which the weights alone reach.
//
//   cpu_gemv_bench --benchmark_format=json --benchmark_filter='gemv/int4-g128/m:1/threads:2'
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bench/random_weights.h"
#include "bench/stream.h"
#include "kernels/cpu/linear.h"
#include "vq/base/parallel.h"
#include "vq/format.h"

namespace vqllm {
namespace {

constexpr int64_t kRows = 4096;
constexpr int64_t kCols = 11008;

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

void Gemv(benchmark::State& state, const std::string& name, int64_t m, int threads, bool exact) {
  SetThreads(threads);
  const Tensor weights = bench::RandomWeights(ParseFormat(name), kRows, kCols);
  std::vector<std::unique_ptr<cpu::Linear>> copies;
  for (int64_t bytes = 0; bytes < bench::kColdBytes; bytes += copies.back()->bytes()) {
    copies.push_back(cpu::PrepareLinear(bench::OwnCopy(weights), {}, {.exact = exact}));
  }
  std::vector<float> x(static_cast<size_t>(m * kCols));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 2654435761u % 2001) / 1000.0f - 1.0f;
  std::vector<float> y(static_cast<size_t>(m * kRows));
  size_t next = 0;
  std::vector<double> times;
  const double stream_before = bench::StreamRate(threads);
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    copies[next]->Multiply({x.data(), m, kCols}, {y.data(), m, kRows});
    times.push_back(Seconds(start));
    next = (next + 1) % copies.size();
  }
  const double stream = (stream_before + bench::StreamRate(threads)) / 2;
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
  const double median = times[times.size() / 2];
  const double rate = static_cast<double>(copies[0]->bytes()) / median;
  state.SetLabel(copies[0]->Kernel(m));
  state.counters["us"] = median * 1e6;
  state.counters["Gweights/s"] = static_cast<double>(kRows * kCols) / median * 1e-9;
  state.counters["GB/s"] = rate * 1e-9;
  state.counters["stream_GB/s"] = stream * 1e-9;
  state.counters["of_stream"] = rate / stream;
}

const bool registered = [] {
  for (const char* name :
       {"fp16",           "bf16",           "fp32",           "int8-g128",      "int4-g128",
        "int3-g128",      "int2-g128",      "VQ<2,4,1>-g128", "VQ<2,4,2>-g128", "VQ<4,4,2>-g128",
        "VQ<4,4,3>-g128", "VQ<4,4,4>-g128", "VQ<8,4,4>-g128", "VQ<8,4,6>-g128", "VQ<8,4,8>-g128",
        "aqlm-2x8",       "aqlm-1x8",       "aqlm-3",         "aqlm-1x16",      "gptvq-2",
        "quip-2",         "quip-4"}) {
    for (const int threads : {1, 2}) {
      for (const int64_t m : {1, 4, 8}) {
        for (const bool exact : {false, true}) {
          benchmark::RegisterBenchmark(
              fmt::format("gemv/{}/m:{}/threads:{}{}", name, m, threads, exact ? "/exact" : "").c_str(),
              [=](benchmark::State& state) { Gemv(state, name, m, threads, exact); })
              ->UseRealTime()
              ->MinTime(0.3);
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace vqllm
