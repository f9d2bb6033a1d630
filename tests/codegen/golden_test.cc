// Emitted files as text: tests/golden/<name>.cu. VQLLM_UPDATE_GOLDEN=1 writes them anew.
#include <cstdlib>

#include "codegen/generate.h"
#include "tests/support/data.h"
#include "vq/base/file.h"

namespace vqllm {
namespace {

struct Golden {
  const char* name;
  OpKind op;
  const char* format;
  int m, n, k;
  const char* gpu;
  Level level = Level::kBest;
  std::optional<Fusion> fusion = {};
  std::optional<Compute> compute = {};
};

constexpr Golden kGolden[] = {
    {"gemv_fp16", OpKind::kGemv, "fp16", 1, 4096, 4096, "a100"},
    {"gemv_int4_g128", OpKind::kGemv, "int4-g128", 1, 4096, 4096, "a100"},
    {"gemv_int3_g128", OpKind::kGemv, "int3-g128", 1, 4096, 11008, "rtx4090"},
    {"gemv_aqlm_2x8", OpKind::kGemv, "aqlm-2x8", 1, 4096, 4096, "a100"},
    {"gemv_aqlm_2x8_gc", OpKind::kGemv, "aqlm-2x8", 1, 4096, 4096, "a100", Level::kGc},
    {"gemv_aqlm_3_o2", OpKind::kGemv, "aqlm-3", 1, 4096, 4096, "rtx4090", Level::kO2},
    {"gemv_gptvq_2", OpKind::kGemv, "gptvq-2", 1, 4096, 4096, "h100"},
    {"gemv_quip_4", OpKind::kGemv, "quip-4", 1, 4096, 4096, "h100"},
    {"gemv_vq6_10_2_tile", OpKind::kGemv, "VQ<6,10,2>-tile96x192", 1, 384, 768, "a100"},
    {"gemm_int4_g128", OpKind::kGemm, "int4-g128", 64, 4096, 4096, "a100"},
    {"gemm_aqlm_2x8", OpKind::kGemm, "aqlm-2x8", 1024, 4096, 4096, "h100"},
    {"gemm_gptvq_2_shared", OpKind::kGemm, "gptvq-2", 64, 4096, 4096, "a100", Level::kBest, Fusion::kShared},
    {"gemm_aqlm_2x8_shuffle", OpKind::kGemm, "aqlm-2x8", 64, 4096, 4096, "rtx4090", Level::kBest,
     Fusion::kRegisterShuffle},
    {"gemv_aqlm_2x8_table",
     OpKind::kGemv,
     "aqlm-2x8",
     1,
     4096,
     4096,
     "h100",
     Level::kBest,
     {},
     Compute::kTable},
    {"gemm_vq8_12_out", OpKind::kGemm, "VQ<8,12,1>-out", 64, 4096, 4096, "a100"},
    {"dequant_quip_2", OpKind::kDequant, "quip-2", 1, 4096, 4096, "rtx5090"},
};

class GoldenFile : public testing::TestWithParam<Golden> {};

TEST_P(GoldenFile, TextIsUnchanged) {
  const Golden& golden = GetParam();
  Request request;
  request.op = golden.op;
  request.format = ParseFormat(golden.format);
  request.m = golden.m;
  request.n = golden.n;
  request.k = golden.k;
  request.gpu = ParseGpu(golden.gpu);
  request.level = golden.level;
  request.pins.fusion = golden.fusion;
  request.pins.compute = golden.compute;
  const std::string text = Generate(request).text;
  const std::filesystem::path path =
      test::SourceDir() / "tests" / "golden" / (std::string(golden.name) + ".cu");
  if (std::getenv("VQLLM_UPDATE_GOLDEN") != nullptr) WriteFileAtomically(path, text);
  ASSERT_TRUE(std::filesystem::exists(path)) << "VQLLM_UPDATE_GOLDEN=1 makes it";
  EXPECT_EQ(text, ReadTextFile(path)) << "VQLLM_UPDATE_GOLDEN=1 accepts the change";
  EXPECT_EQ(text, Generate(request).text) << "the same request gives the same bytes";
  // Lines that a screen shows whole; the format's JSON stays in one piece.
  for (size_t at = 0, end; at < text.size(); at = end + 1) {
    end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    if (!line.starts_with("//")) {
      EXPECT_LE(line.size(), 120u) << line;
    }
  }
  // No macro, no template, no header that NVRTC lacks.
  EXPECT_EQ(text.find("#define"), std::string::npos);
  EXPECT_EQ(text.find("template"), std::string::npos);
  EXPECT_EQ(text.find("cstdint"), std::string::npos);
  EXPECT_NE(text.find("extern \"C\" __global__"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenFile, testing::ValuesIn(kGolden),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace vqllm
