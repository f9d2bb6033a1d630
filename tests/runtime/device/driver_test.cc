#include "runtime/device/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "runtime/device/cuda_api.h"
#include "tests/support/data.h"
#include "vq/base/error.h"

// Both drivers behind the one interface. libcuda is played by fake_libcuda, which runs PTX in the
// interpreter.
namespace vqllm {
namespace {

constexpr const char* kSource = R"(
extern "C" __global__ void scale(const float* x, float factor, int n, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = factor * x[i];
}
extern "C" __global__ void reverse(const float* x, int n, float* y) {
  extern __shared__ float row[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = row[n - 1 - i];
}
)";

class Drivers : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!CompilerAvailable()) GTEST_SKIP() << "no NVRTC: set CUDA_HOME";
    driver_ = std::string(GetParam()) == "ptx" ? NewPtxDriver(ParseGpu("a100"))
                                               : NewCudaDriver(test::FakeLibcuda());
    kernel_ = Compile(kSource, "test.cu", {.arch = driver_->gpu().Arch()});
    module_ = driver_->Load(kernel_, "test.cu");
  }

  template <typename... T>
  LaunchCounts Launch(const char* kernel, const LaunchSize& size, const T&... arguments) {
    const std::array<const void*, sizeof...(T)> pointers = {static_cast<const void*>(&arguments)...};
    return driver_->Launch(*module_, kernel, size, pointers);
  }
  std::vector<float> Download(DeviceAddress from, size_t n) {
    std::vector<float> values(n);
    driver_->Download(values.data(), from, static_cast<int64_t>(4 * n));
    return values;
  }

  std::unique_ptr<GpuDriver> driver_;
  CompiledKernel kernel_;
  std::unique_ptr<GpuModule> module_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, Drivers, testing::Values("ptx", "cuda"));

TEST_P(Drivers, RunKernelsOnMemoryThatBeginsWithZeros) {
  const DeviceAddress x = driver_->Allocate(4 * 100, "x");
  const DeviceAddress y = driver_->Allocate(4 * 100, "y");
  EXPECT_EQ(Download(x, 100), std::vector<float>(100));
  std::vector<float> values(100);
  std::iota(values.begin(), values.end(), 1.0f);
  driver_->Upload(x, values.data(), 400);
  Launch("scale", {.blocks_x = 4, .threads = 32}, x, 2.0f, 100, y);
  for (float& value : values) value *= 2;
  EXPECT_EQ(Download(y, 100), values);
  driver_->Free(x);
  driver_->Free(y);
}

TEST_P(Drivers, GiveKernelsMoreSharedMemoryThanComesUnasked) {
  const int n = 15000;  // 60,000 bytes
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), 0.0f);
  const DeviceAddress x = driver_->Allocate(4 * n, "x");
  const DeviceAddress y = driver_->Allocate(4 * n, "y");
  driver_->Upload(x, values.data(), 4 * n);
  Launch("reverse", {.threads = 256, .shared_bytes = 4 * n}, x, n, y);
  std::reverse(values.begin(), values.end());
  EXPECT_EQ(Download(y, n), values);
}

TEST_P(Drivers, NameTheKernelThatIsNotThere) {
  try {
    Launch("missing", {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("missing"));
  }
}

TEST_P(Drivers, TellOfAKernelThatLeavesItsMemory) {
  const DeviceAddress x = driver_->Allocate(4 * 10, "x");
  const auto run = [&] {
    Launch("scale", {.blocks_x = 1, .threads = 32}, x, 1.0f, 20, x);
    driver_->Synchronise();
  };
  try {
    run();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                testing::AnyOf(testing::HasSubstr("out of bounds"),
                               testing::HasSubstr("cuStreamSynchronize (kernels launched before): 700 "
                                                  "CUDA_ERROR_ILLEGAL_ADDRESS")));
  }
}

TEST_P(Drivers, RepeatARecordedRunOnNewData) {
  const DeviceAddress x = driver_->Allocate(4 * 3, "x");
  const DeviceAddress y = driver_->Allocate(4 * 3, "y");
  const std::unique_ptr<GpuGraph> graph =
      driver_->Record([&] { Launch("scale", {.blocks_x = 1, .threads = 32}, x, 3.0f, 3, y); });
  if (std::string(GetParam()) == "ptx") {
    EXPECT_EQ(graph, nullptr);
    return;
  }
  EXPECT_EQ(Download(y, 3), std::vector<float>(3)) << "recording must not run";
  for (const float first : {1.0f, 5.0f}) {
    const std::vector<float> values = {first, 2, 4};
    driver_->Upload(x, values.data(), 12);
    driver_->Replay(*graph);
    EXPECT_EQ(Download(y, 3), (std::vector<float>{3 * first, 6, 12}));
  }
}

TEST_P(Drivers, StayUsableAfterAnErrorWhileRecording) {
  if (std::string(GetParam()) == "ptx") GTEST_SKIP() << "records nothing";
  EXPECT_THROW(driver_->Record([&] { Launch("missing", {}); }), Error);
  const DeviceAddress x = driver_->Allocate(4, "x");
  Launch("scale", {.threads = 1}, x, 1.0f, 1, x);
  driver_->Synchronise();
}

TEST(PtxDriver, CountsWhatALaunchMoves) {
  if (!CompilerAvailable()) GTEST_SKIP() << "no NVRTC: set CUDA_HOME";
  const auto driver = NewPtxDriver(ParseGpu("h100"));
  const auto module = driver->Load(Compile(kSource, "test.cu", {.arch = "sm_90"}), "test.cu");
  const DeviceAddress x = driver->Allocate(4 * 1024, "x");
  const DeviceAddress y = driver->Allocate(4 * 1024, "y");
  const float factor = 1;
  const int n = 1024;
  const void* const arguments[] = {&x, &factor, &n, &y};
  const LaunchCounts counts = driver->Launch(*module, "scale", {.blocks_x = 8, .threads = 128}, arguments);
  EXPECT_EQ(counts.dram_bytes, 2 * 4 * 1024);
  EXPECT_EQ(counts.l2_bytes, 2 * 4 * 1024);
  EXPECT_EQ(counts.global_lines, 2 * 4 * 1024 / 128);
  EXPECT_EQ(counts.shared_wavefronts, 0);
  EXPECT_GT(counts.instructions, 0);
}

TEST(CudaDriver, PlansForAGpuThatIsInNoTable) {
  const auto driver = NewCudaDriver(test::FakeLibcuda());
  EXPECT_EQ(driver->gpu().Arch(), "sm_86");
  EXPECT_EQ(driver->gpu().sms.value, 7);
  EXPECT_EQ(driver->gpu().dram_gb_per_s.value, 96);  // 2 x 1 GHz x 384 bits
  EXPECT_EQ(driver->gpu().l2_mib.value, 4);
  EXPECT_EQ(driver->Describe(), "Fake GPU (sm_86), driver of CUDA 13.0");
}

TEST(CudaDriver, SaysThatThereIsNoGpu) {
  setenv("VQLLM_FAKE_GPUS", "0", 1);
  try {
    NewCudaDriver(test::FakeLibcuda());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("cuInit"));
    EXPECT_THAT(error.what(), testing::HasSubstr("CUDA_ERROR_NO_DEVICE"));
  }
  unsetenv("VQLLM_FAKE_GPUS");
}

TEST(CudaDriver, SaysThatThereIsNoDriver) {
  try {
    NewCudaDriver("/nonexistent/libcuda.so.1");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("no NVIDIA driver"));
    EXPECT_THAT(error.what(), testing::HasSubstr("/nonexistent/libcuda.so.1"));
  }
}

TEST(CudaDriver, RefusesALibraryThatLacksFunctions) { EXPECT_THROW(NewCudaDriver("libm.so.6"), Error); }

}  // namespace
}  // namespace vqllm
