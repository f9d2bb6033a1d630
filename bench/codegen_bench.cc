// Time to plan, write, compile and fetch a kernel: targets are 10 ms for plan and text, 1 s to compile, 5 ms
// for a hit.
#include <benchmark/benchmark.h>

#include <filesystem>

#include "codegen/generate.h"

namespace vqllm {
namespace {

Request Wanted(const char* format, OpKind op, int64_t m) {
  Request request;
  request.op = op;
  request.format = ParseFormat(format);
  request.m = m;
  request.n = 4096;
  request.k = 4096;
  request.gpu = ParseGpu("a100");
  return request;
}

void PlanAndEmit(benchmark::State& state, const char* format, OpKind op, int64_t m) {
  const Request request = Wanted(format, op, m);
  for (auto _ : state) benchmark::DoNotOptimize(Generate(request).text.size());
}
BENCHMARK_CAPTURE(PlanAndEmit, gemv_aqlm_2x8, "aqlm-2x8", OpKind::kGemv, 1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(PlanAndEmit, gemv_int4, "int4-g128", OpKind::kGemv, 1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(PlanAndEmit, gemv_aqlm_2x8_m16, "aqlm-2x8", OpKind::kGemv, 16)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(PlanAndEmit, gemm_aqlm_2x8, "aqlm-2x8", OpKind::kGemm, 1024)->Unit(benchmark::kMillisecond);

void CompileText(benchmark::State& state, const char* format, OpKind op, int64_t m) {
  if (!CompilerAvailable()) return state.SkipWithError("no CUDA toolkit");
  const Generated generated = Generate(Wanted(format, op, m));
  for (auto _ : state)
    benchmark::DoNotOptimize(Compile(generated.text, generated.FileName(), {.arch = "sm_80"}).cubin.size());
}
BENCHMARK_CAPTURE(CompileText, gemv_aqlm_2x8, "aqlm-2x8", OpKind::kGemv, 1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(CompileText, gemm_int4, "int4-g128", OpKind::kGemm, 64)->Unit(benchmark::kMillisecond);

void CacheHit(benchmark::State& state) {
  if (!CompilerAvailable()) return state.SkipWithError("no CUDA toolkit");
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "vqllm-codegen-bench";
  const KernelCache cache(folder);
  const Generated generated = Generate(Wanted("aqlm-2x8", OpKind::kGemv, 1));
  Build(generated, cache);
  for (auto _ : state) benchmark::DoNotOptimize(Build(generated, cache).hit);
  std::filesystem::remove_all(folder);
}
BENCHMARK(CacheHit)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace vqllm
