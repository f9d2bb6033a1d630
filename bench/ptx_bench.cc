#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/compile.h"
#include "runtime/ptx/interpreter.h"
#include "vq/base/half.h"
#include "vq/base/rng.h"

/// Speed of the PTX interpreter on a VQ GeMV: thread instructions a second, plain, with counters, and with
/// counters and all checks; and with two workers. `warp_bytes` is what a resident warp takes.
namespace vqllm::ptx {
namespace {

// Two additive codebooks of 256 entries of 8 halves in shared memory, a warp for each row.
constexpr const char* kGemv = R"(
#include <cuda_fp16.h>
extern "C" __global__ void __launch_bounds__(256)
vq_gemv(const unsigned short* __restrict__ codes, const uint4* __restrict__ codebook,
        const __half* __restrict__ x, const float* __restrict__ scale, __half* __restrict__ y, int n, int k) {
  extern __shared__ uint4 entries[];
  for (int i = threadIdx.x; i < 512; i += blockDim.x) entries[i] = codebook[i];
  __syncthreads();
  const int lane = threadIdx.x & 31;
  const int row = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
  if (row >= n) return;
  const int subvectors = k >> 3;
  const unsigned short* row_codes = codes + (size_t)row * subvectors;
  float sum = 0.f;
  for (int v = lane; v < subvectors; v += 32) {
    const unsigned code = row_codes[v];
    const uint4 a = entries[code & 255], b = entries[256 + (code >> 8)];
    const uint4 xv = reinterpret_cast<const uint4*>(x)[v];
    const __half2* ah = reinterpret_cast<const __half2*>(&a);
    const __half2* bh = reinterpret_cast<const __half2*>(&b);
    const __half2* xh = reinterpret_cast<const __half2*>(&xv);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 w = __half22float2(__hadd2(ah[j], bh[j]));
      const float2 xf = __half22float2(xh[j]);
      sum = fmaf(w.x, xf.x, sum);
      sum = fmaf(w.y, xf.y, sum);
    }
  }
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  if (lane == 0) y[row] = __float2half_rn(sum * scale[row]);
}
)";

enum Mode { kPlain, kCounters, kChecks };

// Arguments: mode, workers, n = k.
void VqGemv(benchmark::State& state) {
  if (!CompilerAvailable()) {
    state.SkipWithError("no NVRTC: set CUDA_HOME");
    return;
  }
  const int size = static_cast<int>(state.range(2));
  const Module module = Module::Parse(Compile(kGemv, "vq_gemv.cu", {.arch = "sm_80"}).ptx);
  Rng rng(1);
  std::vector<uint16_t> codes(static_cast<size_t>(size) * size / 8), codebook(512 * 8), x(size);
  for (uint16_t& code : codes) code = static_cast<uint16_t>(rng.Next());
  for (uint16_t& value : codebook) value = FloatToHalfBits(rng.Uniform(-1, 1));
  for (uint16_t& value : x) value = FloatToHalfBits(rng.Uniform(-1, 1));
  const std::vector<float> scale(size, 1.0f);
  Memory memory;
  const auto upload = [&](const auto& values, const char* name) {
    const uint64_t bytes = values.size() * sizeof(values[0]);
    const uint64_t address = memory.Allocate(bytes, name);
    memory.CopyIn(address, values.data(), bytes);
    return address;
  };
  const uint64_t d_codes = upload(codes, "codes");
  const uint64_t d_codebook = upload(codebook, "codebook");
  const uint64_t d_x = upload(x, "x");
  const uint64_t d_scale = upload(scale, "scale");
  const uint64_t d_y = memory.Allocate(size * 2, "y");
  const auto run = [&](LaunchOptions options) {
    return Launch(memory, module, "vq_gemv", {static_cast<uint32_t>(size) / 8}, {256}, 8192,
                  Args(d_codes, d_codebook, d_x, d_scale, d_y, size, size), options);
  };
  const uint64_t threads = run({}).thread_instructions;
  LaunchOptions options;
  options.workers = static_cast<int>(state.range(1));
  options.counters = state.range(0) != kPlain;
  options.hazards = state.range(0) == kChecks;
  for (auto _ : state) benchmark::DoNotOptimize(run(options).instructions);
  state.counters["thread_inst/s"] =
      benchmark::Counter(static_cast<double>(threads), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["warp_bytes"] = module.Kernel("vq_gemv").warp_bytes;
}
BENCHMARK(VqGemv)
    ->ArgNames({"mode", "workers", "size"})
    ->ArgsProduct({{kPlain, kCounters, kChecks}, {1, 2}, {4096}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace vqllm::ptx
