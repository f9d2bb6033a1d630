// Every op on every format of the registry compiles for every arch without spills, within the budget of its
// plan.
#include "codegen/compile.h"
#include "codegen/generate.h"
#include "tests/support/formats.h"

namespace vqllm {
namespace {

constexpr const char* kGpus[] = {"a100", "a10", "rtx4090", "h100", "b200", "rtx5090"};  // an arch each
constexpr size_t kGpuCount = std::size(kGpus);

struct Case {
  OpKind op;
  int m, n, k;
};
constexpr Case kCases[] = {{OpKind::kGemv, 1, 4096, 4096},
                           {OpKind::kGemv, 16, 4096, 4096},
                           {OpKind::kGemm, 1024, 4096, 11008},
                           {OpKind::kDequant, 1, 4096, 4096}};

void CompilesWithinBudget(const Request& request) {
  SCOPED_TRACE(
      fmt::format("{} {} m {} {}", ToString(request.op), request.format.name, request.m, request.gpu.name));
  const Generated generated = Generate(request);
  const Plan& plan = generated.plan();
  const CompiledKernel compiled = Compile(generated.text, generated.FileName(), {.arch = request.gpu.Arch()});
  ASSERT_EQ(compiled.kernels.size(), plan.launches.size());
  for (const KernelResources& kernel : compiled.kernels) {
    EXPECT_EQ(kernel.spill_bytes, 0) << kernel.kernel << " at " << kernel.registers << " registers";
    EXPECT_EQ(kernel.stack_bytes, 0) << kernel.kernel;
    EXPECT_EQ(kernel.shared_bytes, 0) << "all shared memory is dynamic";
    const bool main = kernel.kernel == plan.launches[0].kernel;
    const Occupancy occupancy =
        ComputeOccupancy(LimitsOf(plan.arch), main ? plan.Threads() : plan.launches[1].threads,
                         kernel.registers, main ? plan.shared_bytes : 0);
    EXPECT_GE(occupancy.blocks, main ? plan.min_blocks : 1) << kernel.registers << " registers";
  }
  EXPECT_LE(plan.shared_bytes, LimitsOf(plan.arch).shared_block);
}

class Registry : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    if (!CompilerAvailable()) GTEST_SKIP() << "no CUDA toolkit: set CUDA_HOME";
  }
};

// The sample has every op with every format and every op with every arch; `ctest -C full -L full` has them
// all.
TEST_P(Registry, CompilesWithoutSpills) {
  const size_t index = GetParam();
  for (size_t c = 0; c < std::size(kCases); ++c) {
    if (!test::FullMatrix() && kCases[c].op == OpKind::kGemv && index % 2 != c) continue;
    for (size_t gpu = 0; gpu < kGpuCount; ++gpu) {
      if (!test::FullMatrix() && gpu != (index + 2 * c) % kGpuCount) continue;
      Request request;
      request.op = kCases[c].op;
      request.format = ParseFormat(test::RegistryFormats()[index]);
      request.m = kCases[c].m;
      request.n = kCases[c].n;
      request.k = kCases[c].k;
      request.gpu = ParseGpu(kGpus[gpu]);
      CompilesWithinBudget(request);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Registry, testing::Range(size_t{0}, test::RegistryFormats().size()));

}  // namespace
}  // namespace vqllm
