// The command as its users meet it: forms of output, exit codes, one line of error, nothing half-written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/runtime/support/tiny_model.h"
#include "tests/support/data.h"
#include "vq/base/file.h"

namespace vqllm {
namespace {

using nlohmann::json;
using test::CommandResult;
using testing::HasSubstr;

class Command : public testing::Test {
 protected:
  void SetUp() override {
    test::WriteTinyModel(dir_ / "model", test::TinyConfig());
    std::string text;
    for (int i = 0; i < 400; ++i)
      text += "def f" + std::to_string(i * i) + "(): return " + std::to_string(i) + "\n";
    WriteFileAtomically(dir_ / "text.txt", text);
    WriteFileAtomically(dir_ / "empty.txt", "");
  }
  CommandResult Run(const std::string& arguments) {
    return test::Run("cd '" + dir_.path().string() + "' && '" + test::CommandPath().string() + "' " +
                     arguments);
  }
  /// The one line of an error.
  std::string Error(const std::string& arguments, int code = 1) {
    const CommandResult result = Run(arguments);
    EXPECT_EQ(result.exit_code, code) << arguments << "\n" << result.err;
    EXPECT_EQ(result.out, "") << arguments;
    return result.err;
  }
  json Json(const std::string& arguments) {
    const CommandResult result = Run(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.err;
    return json::parse(result.out, nullptr, false);
  }

  test::TempDir dir_;
};

TEST_F(Command, GenerateKeepsItsForm) {
  const json out = Json("generate model -p ab -n 5 --temp 0 --json");
  EXPECT_EQ(out["prompt_ids"], json({256, 'a', 'b'}));
  EXPECT_EQ(out["ids"].size(), 5u);
  EXPECT_TRUE(out["text"].is_string());
  EXPECT_EQ(Json("generate model -p ab -n 5 --temp 0 --json")["ids"], out["ids"]);
  EXPECT_EQ(Json("generate model -p ab -n 5 --temp 0 --json --threads 1")["ids"], out["ids"]);
}

TEST_F(Command, PerplexityKeepsItsFormAndPrintsItsWindows) {
  const json out = Json("perplexity model --text text.txt --ctx 32 --tokens 500 --json");
  EXPECT_EQ(out["tokens"], 500);
  EXPECT_EQ(out["stride"], 32);
  EXPECT_GT(out["ppl"].get<double>(), 1);
  EXPECT_GT(out["ppl_err"].get<double>(), 0);
  EXPECT_THAT(Error("perplexity model --text empty.txt --ctx 32"), HasSubstr("empty.txt: the file is empty"));
}

TEST_F(Command, QuantizeWritesADirectoryThatGeneratesTheSame) {
  EXPECT_EQ(Run("quantize model --weights int8-g64 --kv cq-2 --calib text.txt -o q").exit_code, 0);
  const json info = Json("inspect q --json");
  EXPECT_EQ(info["kv"], "cq-2");
  EXPECT_EQ(info["kv_codebooks"], true);
  EXPECT_EQ(info["formats"][0]["format"], "int8-g64");
  EXPECT_EQ(Json("generate q -p ab -n 8 --temp 0 --json")["ids"].size(),
            8u);  // its own KV format needs no --calib
  EXPECT_THAT(Error("quantize model --weights int4-g64 -o q"),
              HasSubstr("exists and is not an empty folder"));
}

TEST_F(Command, FailuresAreOneLineAndLeaveNothingBehind) {
  EXPECT_THAT(Error("generate nowhere -p x"), HasSubstr("nowhere"));
  EXPECT_THAT(Error("quantize model --weights int5 -o out"), HasSubstr("found \"int5\", allowed:"));
  EXPECT_THAT(Error("quantize model --weights int4-g64 --kv cq-2 -o out"), HasSubstr("--calib"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out"));
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    EXPECT_EQ(entry.path().filename().string().find("partial"), std::string::npos) << entry.path();
  }
  std::filesystem::resize_file(dir_ / "model/model.safetensors", 1000);
  const std::string error = Error("generate model -p x");
  EXPECT_THAT(error, HasSubstr("model.safetensors"));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
}

TEST_F(Command, WrongUsageIsExitCodeTwo) {
  for (const char* arguments :
       {"", "nonsense", "generate", "generate model --nonsense", "generate model -n many",
        "perplexity model --text absent.txt", "perplexity model --text text.txt --ctx 0"}) {
    EXPECT_EQ(Run(arguments).exit_code, 2) << arguments;
  }
  EXPECT_EQ(Run("--help").exit_code, 0);
  for (const char* command : {"generate", "perplexity", "quantize", "compare", "inspect"}) {
    const CommandResult help = Run(std::string(command) + " --help");
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.out, HasSubstr("--json")) << command;
  }
}

TEST_F(Command, CompareGivesARowForEveryPair) {
  const json out = Json(
      "compare model --weights original,int4-g64,'VQ<4,4,2>' --kv kv-fp16,cq-2 --text text.txt --calib "
      "text.txt --ctx 32 "
      "--tokens 200 --decode 4 --json");
  ASSERT_EQ(out["rows"].size(), 6u);
  for (const json& row : out["rows"]) {
    for (const char* field : {"weight_bits", "kv_bits", "model_bytes", "kv_bytes_per_token", "ppl", "ppl_err",
                              "kl_mean", "kl_p99", "top1", "prefill_tps", "decode_tps", "peak_rss"}) {
      ASSERT_TRUE(row[field].is_number()) << field;
      EXPECT_GE(row[field].get<double>(), 0) << field;
    }
  }
  EXPECT_NEAR(out["rows"][0]["kl_mean"].get<double>(), 0, 1e-9);  // the reference itself
  EXPECT_EQ(out["rows"][0]["top1"], 1.0);
  EXPECT_GT(out["rows"][2]["kl_mean"].get<double>(), 1e-6);
  EXPECT_EQ(out["rows"][5]["weights"], "VQ<4,4,2>");
  const CommandResult table =
      Run("compare model --weights original --text text.txt --ctx 32 --tokens 100 --decode 2");
  EXPECT_THAT(table.out, HasSubstr("KL mean"));
  EXPECT_THAT(Error("compare model --weights original --kv cq-2 --text text.txt"), HasSubstr("--calib"));
}

TEST_F(Command, CompareCountsDecodeStepsInTheInterpreter) {
  const json out = Json(
      "compare model --weights original,int4-g64 --kv kv-fp16 --text text.txt --ctx 8 --tokens 8 --decode 1 "
      "--device ptx --gpu h100 --json");
  ASSERT_EQ(out["rows"].size(), 2u);
  for (const json& row : out["rows"]) {
    EXPECT_EQ(row["decode_tps"], 0);  // the interpreter's own speed means nothing
    EXPECT_GT(row["modelled_lower_us"].get<double>(), 0);
    EXPECT_GT(row["modelled_upper_us"].get<double>(), row["modelled_lower_us"].get<double>());
    double bytes = 0;
    double wavefronts = 0;
    for (const json& op : row["ops"]) {
      EXPECT_GT(op["launches"].get<int>(), 0) << op;
      EXPECT_FALSE(op["kernels"].get<std::string>().empty()) << op;
      bytes += op["dram_bytes"].get<double>();
      wavefronts += op["shared_wavefronts"].get<double>();
    }
    EXPECT_NEAR(row["dram_bytes"].get<double>(), bytes, 1e-6 * bytes);
    EXPECT_NEAR(row["shared_wavefronts"].get<double>(), wavefronts, 1e-6 * wavefronts);
  }
  // A step reads its weights once: fewer bytes where they are smaller.
  EXPECT_LT(out["rows"][1]["dram_bytes"].get<double>(), out["rows"][0]["dram_bytes"].get<double>());
}

TEST_F(Command, AShardOrTensorThatIsMissingIsNamed) {  // case I04
  const std::string index = R"({"weight_map": {"model.norm.weight": "model-00002.safetensors"}})";
  std::filesystem::rename(dir_ / "model/model.safetensors", dir_ / "model/model-00001.safetensors");
  WriteFileAtomically(dir_ / "model/model.safetensors.index.json", index);
  EXPECT_THAT(Error("generate model -p x"), HasSubstr("model-00002.safetensors"));
}

}  // namespace
}  // namespace vqllm
