#include <fmt/format.h>

#include "runtime/cli/commands.h"
#include "runtime/cli/common.h"
#include "runtime/compare.h"
#include "vq/base/error.h"

namespace vqllm::cli {
namespace {

struct Options {
  ModelOptions model;
  CompareOptions compare;
  std::string weights = "original,int4-g128,aqlm-2x8,gptvq-2";
  std::string kv = "kv-fp16";
  std::filesystem::path text;
  std::filesystem::path calibration;
  bool json = false;
};

/// Names between commas; those within <...> belong to a name.
std::vector<std::string> SplitNames(const std::string& list) {
  std::vector<std::string> names(1);
  int depth = 0;
  for (const char c : list) {
    depth += c == '<' ? 1 : c == '>' ? -1 : 0;
    if (c == ',' && depth == 0) {
      names.emplace_back();
    } else {
      names.back() += c;
    }
  }
  for (const std::string& name : names) {
    if (name.empty()) Fail("\"{}\": found an empty name, allowed: names between commas", list);
  }
  return names;
}

void Run(Options options) {
  options.compare.weights = SplitNames(options.weights);
  options.compare.kv = SplitNames(options.kv);
  const Model model = options.model.Load();
  const std::vector<int32_t> text = TokensOfFile(model, options.text);
  const std::vector<int32_t> calibration =
      options.calibration.empty() ? std::vector<int32_t>() : TokensOfFile(model, options.calibration);
  const auto device = options.model.MakeDevice();
  const std::vector<CompareRow> rows =
      Compare(model, device, options.compare, text, calibration, options.model.CalibrationDevice(device));
  if (options.json) {
    fmt::print("{}", CompareJson(rows));
    return;
  }
  fmt::print("{} on {}; {}\n{}", options.model.model.string(), device->Describe(),
             device->Counts() ? fmt::format("DRAM and shared memory counted, times modelled for {}",
                                            options.model.device.gpu)
                              : "measured",
             CompareTable(rows));
  fmt::print("{}", CompareKernels(rows));
}

}  // namespace

void AddCompare(CLI::App& app) {
  CLI::App* command = app.add_subcommand("compare", "Compare weight and KV formats on one decoder");
  command->footer(
      "KL and top1 compare with the model as loaded and an fp16 KV cache. MiB counts all weights, codebooks "
      "among them. The best value of\n"
      "a column is marked with *. With --device ptx a decode step is counted instead of timed: DRAM bytes, "
      "passes of shared memory, and\n"
      "from them the modelled time of its launches on --gpu, between what binds each launch alone and "
      "nothing "
      "overlapped. With ptx and\n"
      "cuda the kernels that served each op of the step follow.");
  const auto options = std::make_shared<Options>();
  options->model.Add(*command);
  options->model.AddDevice(*command);
  command->add_option("--weights", options->weights, "Weight formats between commas; \"original\": as loaded")
      ->capture_default_str();
  command->add_option("--kv", options->kv, "KV formats between commas; K/V to set the two apart")
      ->capture_default_str();
  command->add_option("--text", options->text, "The text that is scored")
      ->required()
      ->check(CLI::ExistingFile);
  command
      ->add_option("--calib", options->calibration,
                   "Text to train KV codebooks on; not the one that is scored")
      ->check(CLI::ExistingFile);
  command->add_option("--ctx", options->compare.context, "Tokens of a window")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 20));
  command->add_option("--tokens", options->compare.max_tokens, "Score only the first tokens of the text")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command
      ->add_option("--decode", options->compare.decode_tokens, "Tokens that the decode speed is taken over")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command->add_option("--kv-window", options->compare.kv_window, "Most recent tokens kept as fp16")
      ->check(CLI::Range(0, 1 << 20));
  command->add_option("--kv-sinks", options->compare.kv_sinks, "First tokens kept as fp16")
      ->check(CLI::Range(0, 1 << 20));
  command->add_flag("--kv-before-rope", options->compare.keys_before_rope,
                    "Store keys before rotary embedding");
  command->add_option("--seed", options->compare.seed, "Seed of k-means")->capture_default_str();
  command->add_flag("--json", options->json, "Print {\"rows\":[...]}");
  command->callback([options] { Run(*options); });
}

}  // namespace vqllm::cli
