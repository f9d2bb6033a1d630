#include "codegen/compile.h"

#include <cstdlib>

#include "vq/base/error.h"

namespace vqllm {
namespace {

constexpr const char* kAdd = R"(
#include <cuda_fp16.h>
extern "C" __global__ void __launch_bounds__(64) add(const __half* a, float* b) {
  __shared__ float s[256];
  s[threadIdx.x] = __half2float(a[threadIdx.x]);
  __syncthreads();
  b[threadIdx.x] += s[threadIdx.x ^ 1];
}
)";

#define NEED_COMPILER(kind) \
  if (!CompilerAvailable(kind)) GTEST_SKIP() << "no CUDA toolkit: set CUDA_HOME"

TEST(Compile, GivesPtxCubinAndResources) {
  NEED_COMPILER(CompilerKind::kNvrtc);
  const CompiledKernel compiled = Compile(kAdd, "add.cu", {.arch = "sm_80"});
  EXPECT_NE(compiled.ptx.find(".entry add"), std::string::npos);
  EXPECT_NE(compiled.ptx.find(".target sm_80"), std::string::npos);
  EXPECT_EQ(compiled.ptx.find('\0'), std::string::npos);
  EXPECT_EQ(compiled.cubin.substr(1, 3), "ELF");
  ASSERT_EQ(compiled.kernels.size(), 1u);
  EXPECT_EQ(compiled.kernels[0].kernel, "add");
  EXPECT_EQ(compiled.kernels[0].shared_bytes, 1024);
  EXPECT_EQ(compiled.kernels[0].spill_bytes, 0);
  EXPECT_GT(compiled.kernels[0].registers, 4);
}

TEST(Compile, EveryTargetArch) {
  NEED_COMPILER(CompilerKind::kNvrtc);
  for (const char* arch : {"sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"})
    EXPECT_EQ(Compile(kAdd, "add.cu", {.arch = arch}).kernels.size(), 1u) << arch;
}

TEST(Compile, NvccGivesTheSameReport) {
  NEED_COMPILER(CompilerKind::kNvcc);
  if (std::system("command -v g++ >/dev/null") != 0) GTEST_SKIP() << "nvcc needs a host compiler";
  const CompiledKernel compiled = Compile(kAdd, "add.cu", {.arch = "sm_80", .compiler = CompilerKind::kNvcc});
  EXPECT_NE(compiled.ptx.find(".entry add"), std::string::npos);
  ASSERT_EQ(compiled.kernels.size(), 1u);
  EXPECT_EQ(compiled.kernels[0].shared_bytes, 1024);
  EXPECT_EQ(CompilerVersion(CompilerKind::kNvcc).substr(0, 5), "nvcc ");
}

TEST(Compile, WrongTextIsAnErrorWithTheCompilersWords) {
  NEED_COMPILER(CompilerKind::kNvrtc);
  try {
    Compile("__global__ void f() { undeclared = 1; }", "wrong.cu", {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("wrong.cu"));
    EXPECT_THAT(error.what(), testing::HasSubstr("undeclared"));
  }
}

TEST(Compile, RefusesArchsAndFlagsThatAreNone) {
  for (const char* arch : {"", "sm_", "sm_8", "sm_80 -DX", "compute_80", "sm_80ab", "sm_8000", "sm_80\n"})
    EXPECT_THROW(Compile(kAdd, "add.cu", {.arch = arch}), Error) << arch;
  EXPECT_THROW(Compile(kAdd, "add.cu", {.flags = {"file.cu"}}), Error);
}

TEST(Compile, UnknownArchNamesTheKnownOnes) {
  NEED_COMPILER(CompilerKind::kNvrtc);
  try {
    Compile(kAdd, "add.cu", {.arch = "sm_35"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("sm_35"));
    EXPECT_THAT(error.what(), testing::HasSubstr(" 80 "));
  }
}

TEST(ParseResources, ReadsEveryKernelOfALog) {
  const auto kernels = ParseResources(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'a' for 'sm_90'\n"
      "ptxas info    : Function properties for a\n"
      "ptxas         .     16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size, 31232 bytes "
      "smem\n"
      "ptxas info    : Compiling entry function 'b' for 'sm_90'\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 8 registers");
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].registers, 255);
  EXPECT_EQ(kernels[0].spill_bytes, 20);
  EXPECT_EQ(kernels[0].stack_bytes, 16);
  EXPECT_EQ(kernels[0].shared_bytes, 31232);
  EXPECT_EQ(kernels[1].kernel, "b");
  EXPECT_EQ(kernels[1].registers, 8);
  EXPECT_EQ(kernels[1].shared_bytes, 0);
}

}  // namespace
}  // namespace vqllm
