#include "codegen/gpu.h"

#include <array>
#include <cstddef>
#include <cstring>
#if __has_include(<cuda_occupancy.h>)
#include <cuda_occupancy.h>
#include <cstdlib>
#define HAVE_CUDA_OCCUPANCY 1
#endif

#include "vq/base/error.h"
#include "vq/base/rng.h"

namespace vqllm {
namespace {

TEST(Gpu, EveryFigureHasASource) {
  ASSERT_EQ(KnownGpus().size(), 10u);
  for (const GpuSpec& gpu : KnownGpus()) {
    EXPECT_EQ(LimitsOf(gpu.arch).arch, gpu.arch);
    for (const Figure* figure : {&gpu.sms, &gpu.clock_ghz, &gpu.dram_gb_per_s, &gpu.l2_mib, &gpu.l2_gb_per_s,
                                 &gpu.mma_flop_clock, &gpu.fp32_lanes}) {
      EXPECT_GT(figure->value, 0) << gpu.name;
      EXPECT_FALSE(figure->source.empty()) << gpu.name;
    }
    EXPECT_EQ(ParseGpu(gpu.name).title, gpu.title);
  }
}

TEST(Gpu, AUsersGpuComesFromJson) {
  const GpuSpec gpu =
      ParseGpu(R"({"name":"mine","arch":86,"sms":46,"clock_ghz":1.7,"dram_gb_per_s":448,"l2_mib":4})");
  EXPECT_EQ(gpu.Arch(), "sm_86");
  EXPECT_EQ(gpu.sms.value, 46);
  EXPECT_EQ(gpu.mma_flop_clock.source, "estimate");
}

TEST(Gpu, HostileJsonIsRefusedByField) {
  const auto message = [](const std::string& text) {
    try {
      ParseGpu(text);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto with = [](const std::string& field, const std::string& value) {
    std::string text = R"({"name":"x","arch":80,"sms":108,"clock_ghz":1.4,"dram_gb_per_s":1555,"l2_mib":40})";
    const size_t at = text.find("\"" + field + "\":") + field.size() + 3;
    return text.replace(at, text.find_first_of(",}", at) - at, value);
  };
  EXPECT_THAT(message(with("name", R"("x\n*/ #include")")), testing::HasSubstr("name"));
  EXPECT_THAT(message(with("arch", "75")), testing::HasSubstr("arch"));
  EXPECT_THAT(message(with("arch", "84")), testing::HasSubstr("arch"));
  EXPECT_THAT(message(with("sms", "-1")), testing::HasSubstr("sms"));
  EXPECT_THAT(message(with("sms", "1.5")), testing::HasSubstr("sms"));
  EXPECT_THAT(message(with("clock_ghz", "1e400")), testing::HasSubstr("gpu"));
  EXPECT_THAT(message("no-such-gpu"), testing::HasSubstr("rtx4090"));
}

TEST(Occupancy, SlackKeepsTheBlocksAndOneUnitMoreLosesOne) {
  Rng rng(7);
  for (int trial = 0; trial < 2000; ++trial) {
    const ArchLimits& limits = LimitsOf(std::array{80, 86, 89, 90, 100, 120}[rng.Below(6)]);
    const int threads = 32 * static_cast<int>(1 + rng.Below(32));
    const int registers = static_cast<int>(16 + rng.Below(200));
    const int shared = static_cast<int>(rng.Below(static_cast<uint64_t>(limits.shared_block)));
    const Occupancy found = ComputeOccupancy(limits, threads, registers, shared);
    if (found.blocks == 0) continue;
    const Occupancy filled =
        ComputeOccupancy(limits, threads, registers + found.slack_registers, shared + found.slack_shared);
    EXPECT_EQ(filled.blocks, found.blocks);
    EXPECT_LT(ComputeOccupancy(limits, threads, registers, shared + found.slack_shared + 128).blocks,
              found.blocks);
    if (registers + found.slack_registers < 255) {
      EXPECT_LT(ComputeOccupancy(limits, threads, registers + found.slack_registers + 1, shared).blocks,
                found.blocks);
    }
  }
}

#ifdef HAVE_CUDA_OCCUPANCY
int CudaBlocks(const ArchLimits& limits, int threads, int registers, int shared) {
  cudaOccDeviceProp device;
  std::memset(static_cast<void*>(&device), 0, sizeof device);
  device.computeMajor = limits.arch / 10;
  device.computeMinor = limits.arch % 10;
  device.maxThreadsPerBlock = 1024;
  device.maxThreadsPerMultiprocessor = 32 * limits.warps_sm;
  device.regsPerBlock = 65536;
  device.regsPerMultiprocessor = limits.registers_sm;
  device.warpSize = 32;
  device.sharedMemPerBlock = 48 * 1024;
  device.sharedMemPerMultiprocessor = static_cast<size_t>(limits.shared_sm);
  device.numSms = 1;
  device.sharedMemPerBlockOptin = static_cast<size_t>(limits.shared_block);
  device.reservedSharedMemPerBlock = static_cast<size_t>(limits.shared_reserved);
  cudaOccFuncAttributes function;
  std::memset(static_cast<void*>(&function), 0, sizeof function);
  function.maxThreadsPerBlock = 1024;
  function.numRegs = registers;
  function.sharedSizeBytes = 0;
  function.partitionedGCConfig = PARTITIONED_GC_OFF;
  function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  function.maxDynamicSharedSizeBytes = static_cast<size_t>(limits.shared_block);
  function.numBlockBarriers = 1;
  cudaOccDeviceState state;
  state.cacheConfig = CACHE_PREFER_NONE;
  state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
  cudaOccResult result{};
  EXPECT_EQ(cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state, threads,
                                                    static_cast<size_t>(shared)),
            CUDA_OCC_SUCCESS);
  return result.activeBlocksPerMultiprocessor;
}

TEST(Occupancy, AgreesWithCudaOccupancy) {
  Rng rng(3);
  for (int trial = 0; trial < 5000; ++trial) {
    const ArchLimits& limits = LimitsOf(std::array{80, 86, 89, 90, 100, 120}[rng.Below(6)]);
    const int threads = 32 * static_cast<int>(1 + rng.Below(32));
    const int registers = static_cast<int>(1 + rng.Below(255));
    const int shared = static_cast<int>(rng.Below(static_cast<uint64_t>(limits.shared_block) + 1));
    EXPECT_EQ(ComputeOccupancy(limits, threads, registers, shared).blocks,
              CudaBlocks(limits, threads, registers, shared))
        << "sm_" << limits.arch << " threads " << threads << " registers " << registers << " shared "
        << shared;
  }
}
#endif

}  // namespace
}  // namespace vqllm
