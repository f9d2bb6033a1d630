// The decoder on emitted kernels, against the CPU device: whole models in the interpreter, where a hazard is
// an Error, and behind libcuda's interface, where a decode step is recorded and repeated.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/calibrate.h"
#include "runtime/device/gpu.h"
#include "runtime/generate.h"
#include "runtime/model/tokenizer.h"
#include "tests/runtime/support/tiny_model.h"
#include "tests/support/data.h"
#include "vq/base/error.h"
#include "vq/base/file.h"

namespace vqllm {
namespace {

/// Kernels of all tests of this file: they are many, and the same in several tests. An entry is named after
/// its text.
KernelCache SharedCache() {
  return KernelCache(std::filesystem::temp_directory_path() / "vqllm-test-kernels");
}

std::shared_ptr<GpuDevice> Interpreter(const char* gpu = "a100") {
  return std::make_shared<GpuDevice>(NewPtxDriver(ParseGpu(gpu)), SharedCache());
}

const std::filesystem::path& EmbeddedFolder() {
  static const std::filesystem::path folder = test::SourceDir() / "bench/models/pystdlib";
  return folder;
}

KvCacheSpec TrainedKv(const Model& model, const std::string& name, const std::string& text) {
  KvCacheSpec spec = ParseKvCacheSpec(name);
  Decoder decoder(NewCpuDevice(), model, 256);
  const std::vector<int32_t> tokens = model.tokenizer->Encode(text, {.add_bos = false});
  TrainKvCodebooks(decoder, std::span(tokens).first(std::min<size_t>(tokens.size(), 2048)), FirstToken(model),
                   {}, spec);
  return spec;
}

struct Pair {
  const char* weights;
  const char* kv;
};

class GpuPairs : public testing::TestWithParam<Pair> {
 protected:
  void SetUp() override {
    if (!CompilerAvailable()) GTEST_SKIP() << "no NVRTC: set CUDA_HOME";
  }

  /// The same ids from the CPU and from the kernels: few, because fp16 operands move a code of the KV cache
  /// now and then, and where two tokens are equally likely to a percent either may win. Verbs are compared
  /// with tolerances below.
  void Compare(const Model& loaded, const std::string& calibration, const std::string& prompt,
               int64_t tokens) {
    const std::string weights = GetParam().weights;
    const Model model =
        weights == "original" ? loaded : QuantizeModel(loaded, ParseFormat(weights), 1, false).model;
    const KvCacheSpec kv = TrainedKv(model, GetParam().kv, calibration);
    GenerateRequest request;
    request.prompt = model.tokenizer->Encode(prompt, {});
    request.max_tokens = tokens;
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    const auto run = [&](std::shared_ptr<Device> device) {
      Decoder decoder(std::move(device), model, 64);
      return Generate(decoder, kv, *model.tokenizer, {request}).front();
    };
    const GenerateResult cpu = run(NewCpuDevice(/*exact=*/true));
    const GenerateResult gpu = run(Interpreter());
    EXPECT_EQ(gpu.ids, cpu.ids) << cpu.text << "\n" << gpu.text;
    ASSERT_EQ(gpu.ids.size(), static_cast<size_t>(tokens));
  }
};

TEST_P(GpuPairs, EmbeddedModelContinuesAsOnTheCpu) {
  static const Model model = LoadModel(EmbeddedFolder());
  Compare(model, ReadTextFile(EmbeddedFolder() / "calib.txt"), "import os", 8);
}

TEST_P(GpuPairs, Stories260KContinuesAsOnTheCpu) {
  VQLLM_NEED_DATA("stories260K/f32");
  static const Model model = LoadModel(test::DataDir() / "stories260K/f32");
  Compare(model,
          "Once upon a time there was a little girl who had a big red ball. She liked to play with it in the "
          "park.",
          "Once upon a time, there was a little", 8);
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuPairs,
                         testing::Values(Pair{"original", "cq-2"}, Pair{"int4-g128", "kv-int4"},
                                         Pair{"aqlm-2x8", "cq-4"}, Pair{"gptvq-2", "kv-fp16"}));

/// Models of the tests' own: odd groups, windows, biases, several sequences.
class GpuDecoder : public testing::Test {
 protected:
  void SetUp() override {
    if (!CompilerAvailable()) GTEST_SKIP() << "no NVRTC: set CUDA_HOME";
  }

  Model Tiny(const nlohmann::json& changes) {
    nlohmann::json config = test::TinyConfig();
    config.update(changes);
    const auto folder = temp_ / std::to_string(models_++);
    test::WriteTinyModel(folder, config);
    return LoadModel(folder);
  }

  /// Logits of a prompt of every length in turn, then of single tokens, two sequences at a time.
  std::vector<float> Run(std::shared_ptr<Device> device, const Model& model, const KvCacheSpec& kv) {
    Decoder decoder(std::move(device), model, 64, 24);
    KvCache cache(decoder.device(), decoder.config(), kv, 128, 2, decoder.context());
    const int a = cache.NewSequence();
    const int b = cache.NewSequence();
    std::vector<int32_t> tokens(33);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 37 % 256);
    std::vector<float> all;
    std::vector<float> logits;
    const auto feed = [&](std::initializer_list<DecoderInput> inputs) {
      decoder.Run(cache, std::vector<DecoderInput>(inputs), logits);
      all.insert(all.end(), logits.begin(), logits.end());
    };
    const std::span<const int32_t> text(tokens);
    feed({{.slot = a, .tokens = text.first(29), .logits = 3}, {.slot = b, .tokens = text.first(5)}});
    for (size_t i = 0; i < 4; ++i)
      feed({{.slot = b, .tokens = text.subspan(i, 1)}, {.slot = a, .tokens = text.subspan(29 + i, 1)}});
    return all;
  }

  /// Rounding of operands to fp16 (2^-11) passes through 2 layers of four products each.
  static constexpr double kTolerance = 2 * 4 * 0x1p-11;

  void ExpectClose(const std::vector<float>& found, const std::vector<float>& wanted) {
    ASSERT_EQ(found.size(), wanted.size());
    EXPECT_LT(test::RelativeError(std::vector<double>(wanted.begin(), wanted.end()), found), kTolerance);
  }

  test::TempDir temp_;
  int models_ = 0;
};

TEST_F(GpuDecoder, AgreesWithTheCpuOnBatchesWindowsAndBiases) {
  const Model model = Tiny({{"model_type", "qwen2"},
                            {"architectures", {"Qwen2ForCausalLM"}},
                            {"num_attention_heads", 6},
                            {"head_dim", 16},
                            {"num_key_value_heads", 2}});
  KvCacheSpec plain = ParseKvCacheSpec("kv-fp16");
  KvCacheSpec windows = ParseKvCacheSpec("kv-int8/kv-fp16");
  windows.sinks = 2;
  windows.window = 5;
  windows.keys_before_rope = true;
  for (const KvCacheSpec& kv : {plain, windows})
    ExpectClose(Run(Interpreter("rtx4090"), model, kv), Run(NewCpuDevice(true), model, kv));
}

TEST_F(GpuDecoder, AgreesWithTheCpuUnderASlidingWindow) {
  const Model model = Tiny({{"model_type", "mistral"},
                            {"architectures", {"MistralForCausalLM"}},
                            {"sliding_window", 9},
                            {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}});
  const KvCacheSpec kv = ParseKvCacheSpec("kv-fp16");
  ExpectClose(Run(Interpreter(), model, kv), Run(NewCpuDevice(true), model, kv));
}

TEST_F(GpuDecoder, AStepThatIsRecordedGivesTheSameBits) {
  const Model model = Tiny(nlohmann::json::object());
  const KvCacheSpec kv = ParseKvCacheSpec("kv-fp16");
  const auto cuda = std::make_shared<GpuDevice>(NewCudaDriver(test::FakeLibcuda()), SharedCache());
  const auto ptx = std::make_shared<GpuDevice>(NewPtxDriver(cuda->kernels().driver().gpu()), SharedCache());
  // The third of equal steps and the following ones are graphs: Run has four.
  EXPECT_EQ(Run(cuda, model, kv), Run(ptx, model, kv));
  EXPECT_GT(cuda->recorded_runs(), 0);
  EXPECT_EQ(ptx->recorded_runs(), 0);
  EXPECT_EQ(Run(cuda, model, kv), Run(ptx, model, kv))
      << "a second decoder must not meet the graphs of the first";
}

TEST_F(GpuDecoder, SaysWhichKvFormatItLacks) {
  const Model model = Tiny(nlohmann::json::object());
  Decoder decoder(Interpreter(), model, 16);
  EXPECT_THROW(KvCache(decoder.device(), decoder.config(), ParseKvCacheSpec("kv-fp32"), 16, 1), Error);
}

}  // namespace
}  // namespace vqllm
