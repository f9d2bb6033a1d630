#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/compile.h"
#include "kernels/cuda/fixed_kernels.h"
#include "runtime/ptx/interpreter.h"
#include "vq/base/half.h"
#include "vq/base/rng.h"

/// A fixed kernel in the PTX interpreter, every hazard check on.
namespace vqllm::test {

inline std::vector<float> RandomFloats(int64_t n, float scale, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = scale * rng.Normal();
  return values;
}

inline std::vector<Half> RandomHalves(int64_t n, float scale, uint64_t seed) {
  const std::vector<float> values = RandomFloats(n, scale, seed);
  return {values.begin(), values.end()};
}

class CudaKernel {
 public:
  /// Compiles kernels/cuda/<name>.cu for one arch of each of the compiler's two code generators.
  explicit CudaKernel(const std::string& name, const char* arch = "sm_80")
      : module_(ptx::Module::Parse(Compile(FixedKernelText(name), name + ".cu", {.arch = arch}).ptx, name)) {}

  template <typename T>
  uint64_t Upload(const std::vector<T>& values, const std::string& name) {
    const uint64_t address = memory_.Allocate(values.size() * sizeof(T), name);
    if (!values.empty()) memory_.CopyIn(address, values.data(), values.size() * sizeof(T));
    return address;
  }
  template <typename T>
  uint64_t Allocate(int64_t count, const std::string& name) {
    return memory_.Allocate(static_cast<uint64_t>(count) * sizeof(T), name);
  }
  template <typename T>
  std::vector<T> Download(uint64_t address, int64_t count) const {
    std::vector<T> values(static_cast<size_t>(count));
    memory_.CopyOut(values.data(), address, values.size() * sizeof(T));
    return values;
  }

  /// Runs the kernel; a hazard fails the test.
  template <typename... T>
  ptx::Counters Launch(const std::string& kernel, int64_t blocks, int threads, int64_t shared,
                       const T&... arguments) {
    ptx::LaunchOptions options;
    options.uninitialised_global = true;
    const ptx::LaunchReport report = ptx::Launch(
        memory_, module_, kernel, {static_cast<uint32_t>(blocks)}, {static_cast<uint32_t>(threads)},
        static_cast<uint32_t>(shared), ptx::Args(arguments...), options);
    for (const ptx::Hazard& hazard : report.hazards) ADD_FAILURE() << kernel << ": " << hazard.ToString();
    EXPECT_TRUE(report.completed);
    return report.counters;
  }

 private:
  ptx::Module module_;
  ptx::Memory memory_;
};

/// |found - wanted| allowed where `magnitude` bounds the terms of a chain of `chain` fp32 roundings, and the
/// result is rounded to fp16.
inline double HalfTolerance(double wanted, double magnitude, double chain) {
  const double error = magnitude * chain * 0x1p-24;
  return error + 0x1p-11 * (std::fabs(wanted) + error) + 0x1p-25;
}

}  // namespace vqllm::test

/// Skips where no CUDA compiler is there.
#define VQLLM_NEED_NVRTC() \
  if (!::vqllm::CompilerAvailable()) GTEST_SKIP() << "no NVRTC: set CUDA_HOME"
