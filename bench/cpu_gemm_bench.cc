// Prefill: y = x W^T at many rows of x, W stored in a format, beside OpenBLAS's sgemm on fp32 weights in the
// same run. The library picks its kernel by the name it gives the processor, which the label shows: an old
// OpenBLAS takes a new processor for an ancient one, and OPENBLAS_CORETYPE=SkylakeX in the environment puts
// that right.
//
//   cpu_gemm_bench --benchmark_filter='m:512'
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/random_weights.h"
#include "kernels/cpu/aligned.h"
#include "kernels/cpu/linear.h"
#include "vq/base/parallel.h"
#include "vq/format.h"

#ifdef VQLLM_HAVE_OPENBLAS
#include <cblas.h>
#endif

namespace vqllm {
namespace {

constexpr int64_t kRows = 4096;
constexpr int64_t kCols = 4096;

cpu::AlignedVector<float> Activations(int64_t m) {
  cpu::AlignedVector<float> x(static_cast<size_t>(m * kCols));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 2654435761u % 2001) / 1000.0f - 1.0f;
  return x;
}

void Time(benchmark::State& state, int64_t m, const std::function<void()>& multiply) {
  multiply();
  std::vector<double> times;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    multiply();
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
  const double median = times[times.size() / 2];
  state.counters["ms"] = median * 1e3;
  state.counters["us_token"] = median * 1e6 / static_cast<double>(m);
  state.counters["GFLOP/s"] = 2e-9 * static_cast<double>(m * kRows * kCols) / median;
}

void Ours(benchmark::State& state, const std::string& name, int64_t m, int threads) {
  SetThreads(threads);
  const auto linear = cpu::PrepareLinear(bench::RandomWeights(ParseFormat(name), kRows, kCols), {}, {});
  const cpu::AlignedVector<float> x = Activations(m);
  cpu::AlignedVector<float> y(static_cast<size_t>(m * kRows));
  Time(state, m, [&] { linear->Multiply({x.data(), m, kCols}, {y.data(), m, kRows}); });
  state.SetLabel(linear->Kernel(m));
}

#ifdef VQLLM_HAVE_OPENBLAS
void OpenBlas(benchmark::State& state, int64_t m, int threads) {
  openblas_set_num_threads(threads);
  const cpu::AlignedVector<float> w(static_cast<size_t>(kRows * kCols), 0.5f);
  const cpu::AlignedVector<float> x = Activations(m);
  cpu::AlignedVector<float> y(static_cast<size_t>(m * kRows));
  Time(state, m, [&] {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(m), kRows, kCols, 1.0f, x.data(),
                kCols, w.data(), kCols, 0.0f, y.data(), kRows);
  });
  state.SetLabel(openblas_get_corename());
}
#endif

const bool registered = [] {
  for (const int threads : {1, 2}) {
    for (const int64_t m : {16, 32, 64, 512}) {
      const auto add = [&](const std::string& name, auto run) {
        benchmark::RegisterBenchmark(fmt::format("gemm/{}/m:{}/threads:{}", name, m, threads).c_str(), run)
            ->UseRealTime()
            ->MinTime(0.5);
      };
#ifdef VQLLM_HAVE_OPENBLAS
      add("openblas", [=](benchmark::State& state) { OpenBlas(state, m, threads); });
#endif
      for (const std::string name : {"fp32", "fp16", "int8-g128", "int4-g128", "int2-g128", "VQ<4,4,2>-g128",
                                     "VQ<8,4,4>-g128", "aqlm-2x8", "gptvq-2", "quip-2"}) {
        add(name, [=](benchmark::State& state) { Ours(state, name, m, threads); });
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace vqllm
