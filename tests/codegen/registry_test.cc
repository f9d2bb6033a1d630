// Every op on formats of every kind compiles without spills, within the budget of its plan.
#include "codegen/compile.h"
#include "codegen/generate.h"
#include "codegen/op.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

Request Wanted(OpKind op, const std::string& format, int m, int n, int k, const std::string& gpu) {
  Request request;
  request.op = op;
  request.format = ParseFormat(format);
  request.m = m;
  request.n = n;
  request.k = k;
  request.gpu = ParseGpu(gpu);
  return request;
}

void CompilesWithinBudget(const Request& request) {
  SCOPED_TRACE(fmt::format("{} {} m {} {} {}", ToString(request.op), request.format.name, request.m,
                           request.gpu.name, ToString(request.level)));
  const Generated generated = Generate(request);
  const Plan& plan = generated.plan();
  const CompiledKernel compiled = Compile(generated.text, generated.FileName(), {.arch = request.gpu.Arch()});
  ASSERT_EQ(compiled.kernels.size(), plan.launches.size());
  for (const KernelResources& kernel : compiled.kernels) {
    EXPECT_EQ(kernel.spill_bytes, 0) << kernel.kernel;
    EXPECT_EQ(kernel.stack_bytes, 0) << kernel.kernel;
    EXPECT_EQ(kernel.shared_bytes, 0) << "all shared memory is dynamic";
    const bool main = kernel.kernel == plan.launches[0].kernel;
    const Occupancy occupancy = ComputeOccupancy(LimitsOf(plan.arch), main ? plan.Threads() : 256,
                                                 kernel.registers, main ? plan.shared_bytes : 0);
    EXPECT_GE(occupancy.blocks, main ? plan.min_blocks : 1) << kernel.registers << " registers";
  }
  EXPECT_LE(plan.shared_bytes, LimitsOf(plan.arch).shared_block);
}

class Registry : public testing::TestWithParam<std::pair<const char*, int>> {
 protected:
  void SetUp() override {
    if (!CompilerAvailable()) GTEST_SKIP() << "no CUDA toolkit: set CUDA_HOME";
  }
};

// A spread of ops over archs.
TEST_P(Registry, CompilesWithoutSpills) {
  const auto& [format, index] = GetParam();
  constexpr const char* kGpus[] = {"a100", "a10", "rtx4090", "h100", "b200", "rtx5090"};
  CompilesWithinBudget(Wanted(OpKind::kGemv, format, index % 2 == 0 ? 1 : 16, 4096, 4096, kGpus[index % 6]));
  const OpKind second = index % 3 == 0 ? OpKind::kDequant : OpKind::kGemm;
  CompilesWithinBudget(Wanted(second, format, 1024, 4096, 11008, kGpus[(index + 3) % 6]));
}

std::vector<std::pair<const char*, int>> Numbered(std::initializer_list<const char*> formats) {
  std::vector<std::pair<const char*, int>> numbered;
  for (const char* format : formats) numbered.emplace_back(format, static_cast<int>(numbered.size()));
  return numbered;
}

INSTANTIATE_TEST_SUITE_P(Formats, Registry,
                         testing::ValuesIn(Numbered({"fp16",           "int8-g128",
                                                     "int4-g128",      "int4-g128-sym",
                                                     "int4-row",       "int3-g128",
                                                     "int2-g64",       "quip-2",
                                                     "quip-4",         "aqlm-1x16",
                                                     "aqlm-2x8",       "aqlm-3",
                                                     "gptvq-2",        "VQ<2,4,1>-g128",
                                                     "VQ<8,4,4>-g128", "VQ<16,4,8>-g128",
                                                     "cq-2",           "VQ<6,10,2>-tile96x192",
                                                     "VQ<3,5,3>",      "VQ<16,16,1>",
                                                     "VQ<8,12,1>-out", "VQ<4,8,1>-ingroup128-out"})));

}  // namespace
}  // namespace vqllm
