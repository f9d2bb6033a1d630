#include "vq/checkpoint/quantization_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/data.h"
#include "vq/base/error.h"
#include "vq/base/file.h"

namespace vqllm {
namespace {

using testing::HasSubstr;

QuantizationConfig Parse(const std::string& json) { return ParseQuantizationConfig(json, "config.json"); }

std::string Refusal(const std::string& json) {
  try {
    Parse(json);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(QuantizationConfig, ReadsWhatGptqModelWrites) {
  const QuantizationConfig config = Parse(
      R"({"quant_method":"gptq","bits":4,"group_size":128,"desc_act":true,"sym":true,"checkpoint_format":"gptq",)"
      R"("true_sequential":true,"damp_percent":0.01,"lm_head":false,"meta":{"quantizer":["gptqmodel:x"]},"dynamic":null})");
  EXPECT_EQ(config.method, QuantMethod::kGptq);
  EXPECT_EQ(config.format.name, "int4-g128");
  EXPECT_TRUE(config.zeros_less_one);
  EXPECT_TRUE(config.act_order);
  EXPECT_EQ(config.symmetric, true);
}

TEST(QuantizationConfig, ReadsAwqAndAqlm) {
  const QuantizationConfig awq = Parse(
      R"({"quant_method":"awq","bits":4,"group_size":64,"zero_point":true,"version":"gemm","modules_to_not_convert":null})");
  EXPECT_EQ(awq.method, QuantMethod::kAwq);
  EXPECT_EQ(awq.format.name, "int4-g64");
  const QuantizationConfig aqlm = Parse(
      R"({"quant_method":"aqlm","nbits_per_codebook":16,"num_codebooks":1,"out_group_size":1,"in_group_size":8,)"
      R"("linear_weights_not_to_quantize":["lm_head.weight"]})");
  EXPECT_EQ(aqlm.format.name, "aqlm-1x16");
}

TEST(QuantizationConfig, RefusesWhatItDoesNotRead) {
  const std::string gptq = R"({"quant_method":"gptq","bits":4,"group_size":128)";
  EXPECT_EQ(Refusal(gptq + "}"), "");
  EXPECT_THAT(Refusal(gptq + R"(,"checkpoint_format":"marlin"})"), HasSubstr("allowed: gptq, gptq_v2"));
  EXPECT_THAT(Refusal(gptq + R"(,"is_marlin_format":true})"), HasSubstr("is_marlin_format"));
  EXPECT_THAT(Refusal(gptq + R"(,"pack_dtype":"int8"})"), HasSubstr("pack_dtype"));
  EXPECT_THAT(Refusal(gptq + R"(,"dynamic":{"-:.*down.*":{}}})"), HasSubstr("dynamic"));
  EXPECT_THAT(Refusal(R"({"quant_method":"gptq","bits":5,"group_size":128})"),
              HasSubstr("allowed: 2, 3, 4, 8"));
  EXPECT_THAT(Refusal(R"({"quant_method":"gptq","bits":4,"group_size":0})"), HasSubstr("-1 or at least 1"));
  EXPECT_THAT(Refusal(R"({"quant_method":"gptq","bits":4,"group_size":-2})"), HasSubstr("group_size"));
  EXPECT_THAT(Refusal(R"({"quant_method":"awq","bits":4,"group_size":64,"version":"gemv"})"),
              HasSubstr("gemm"));
  EXPECT_THAT(Refusal(R"({"quant_method":"awq","bits":4,"group_size":64,"zero_point":false})"),
              HasSubstr("zero_point"));
  EXPECT_THAT(Refusal(R"({"quant_method":"awq","bits":8,"group_size":64})"), HasSubstr("bits"));
  EXPECT_THAT(Refusal(R"({"quant_method":"bitsandbytes"})"), HasSubstr("gptq, awq, aqlm, vqllm"));
  EXPECT_THAT(
      Refusal(
          R"({"quant_method":"aqlm","nbits_per_codebook":8,"num_codebooks":2,"out_group_size":4,"in_group_size":8})"),
      HasSubstr("out_group_size"));
  EXPECT_THAT(
      Refusal(
          R"({"quant_method":"aqlm","nbits_per_codebook":17,"num_codebooks":2,"out_group_size":1,"in_group_size":8})"),
      HasSubstr("nbits_per_codebook"));
  EXPECT_THAT(Refusal(R"({"quant_method":"vqllm","version":2,"format":{}})"), HasSubstr("version"));
  EXPECT_THAT(Refusal(R"({"quant_method":"vqllm","version":1,"format":"int4-g128"})"), HasSubstr("format"));
  EXPECT_THAT(Refusal(R"({"quant_method":"vqllm","version":1,"format":{"name":"x","kind":"int","bits":7}})"),
              HasSubstr("config.json: format: format x: bits"));
  EXPECT_THAT(Refusal("[]"), HasSubstr("a JSON object"));
}

TEST(QuantizationConfig, GoesThroughJsonUnchanged) {
  QuantizationConfig config;
  config.method = QuantMethod::kVqllm;
  config.format = ParseFormat("VQ<6,10,2>-tile96x192");
  config.overrides["a.b"] = ParseFormat("quip-2");
  const QuantizationConfig read = Parse(ToJson(config));
  EXPECT_EQ(read.format, config.format);
  EXPECT_EQ(read.overrides, config.overrides);
}

TEST(QuantizationConfig, IsFoundInConfigJsonOrInTheOldFile) {
  const test::TempDir dir;
  WriteFileAtomically(dir / "config.json", R"({"quantization_config":null})");
  EXPECT_EQ(ReadQuantizationConfig(dir.path()).method, QuantMethod::kNone);
  WriteFileAtomically(dir / "quantize_config.json", R"({"bits":4,"group_size":128,"desc_act":false})");
  EXPECT_EQ(ReadQuantizationConfig(dir.path()).method, QuantMethod::kGptq);
  WriteFileAtomically(dir / "config.json",
                      R"({"quantization_config":{"quant_method":"awq","bits":4,"group_size":32}})");
  EXPECT_EQ(ReadQuantizationConfig(dir.path()).method, QuantMethod::kAwq);
  WriteFileAtomically(dir / "config.json", R"({"quip_params":{"codebook":"E8P12"}})");
  EXPECT_THROW(ReadQuantizationConfig(dir.path()), Error);
}

TEST(QuantizationConfig, NamesFormatsThatHaveNoName) {
  const auto unnamed = [](const char* text) {
    Format format = ParseFormat(text);
    format.name = "x";
    return CanonicalName(format);
  };
  EXPECT_EQ(unnamed("aqlm-2x8"), "aqlm-2x8");
  EXPECT_EQ(unnamed("int4-g128-sym"), "int4-g128-sym");
  EXPECT_EQ(unnamed("VQ<4,5,3>-row"), "VQ<4,5,3>-row");
  Format odd = ParseFormat("int3-g128");
  odd.group = 24;
  odd.symmetric = true;
  EXPECT_EQ(CanonicalName(odd), "int3-g24-sym");
}

}  // namespace
}  // namespace vqllm
