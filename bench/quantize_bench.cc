// Time and peak memory of quantising one 4096 x 4096 Gaussian matrix. `peak` is the largest resident set
// during the run, the fp32 matrix itself included, in sizes of that matrix.
#include <benchmark/benchmark.h>

#include <fstream>
#include <string>
#include <vector>

#include "vq/base/rng.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

constexpr int64_t kSize = 4096;

const std::vector<float>& Weights() {
  static const std::vector<float> weights = [] {
    Rng rng(1);
    std::vector<float> w(kSize * kSize);
    for (float& value : w) value = rng.Normal();
    return w;
  }();
  return weights;
}

/// Makes the kernel count the peak from now on; without the right to, the peak of the whole process stands.
void ResetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

double PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::stod(line.substr(6));
  }
  return 0;
}

void QuantizeMatrix(benchmark::State& state, const std::string& name) {
  const Format format = ParseFormat(name);
  const std::vector<float>& w = Weights();
  QuantizeReport report;
  ResetPeak();
  for (auto _ : state) {
    benchmark::DoNotOptimize(Quantize(format, {w.data(), kSize, kSize}, {}, name, &report));
  }
  state.counters["peak"] = PeakBytes() / static_cast<double>(w.size() * sizeof(float));
  state.counters["mse"] = report.relative_mse;
  state.counters["bits"] = EffectiveBits(format, kSize, kSize);
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(w.size()));
}

const bool kRegistered = [] {
  for (const char* name : {"int8-g128", "int4-g128", "int2-g128", "VQ<2,4,1>-g128", "VQ<4,4,2>-g128",
                           "VQ<8,4,4>-g128", "VQ<4,8,1>", "gptvq-2", "aqlm-2x8", "quip-2", "quip-4"}) {
    benchmark::RegisterBenchmark(name, QuantizeMatrix, std::string(name))
        ->Iterations(1)
        ->UseRealTime()
        ->MeasureProcessCPUTime()
        ->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
}  // namespace vqllm
