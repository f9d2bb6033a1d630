#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "runtime/calibrate.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/common.h"
#include "runtime/kv_cache.h"
#include "vq/base/error.h"

namespace vqllm::cli {
namespace {

struct Options {
  ModelOptions model;
  KvOptions kv;
  std::string weights = "original";
  std::filesystem::path out;
  uint64_t seed = 1;
  bool json = false;
};

void Run(const Options& options) {
  if (std::filesystem::exists(options.out) && !std::filesystem::is_empty(options.out)) {
    Fail("{}: exists and is not an empty folder", options.out.string());
  }
  // Names are checked before the model is read.
  const bool quantises = options.weights != "original";
  const Format format = quantises ? ParseFormat(options.weights) : Format();
  if (!options.kv.format.empty()) ParseKvCacheSpec(options.kv.format);

  Model model = options.model.Load();
  ModelQuantization result{.model = model};
  if (quantises) result = QuantizeModel(model, format, options.seed, true);
  result.effective_bits = WeightBits(result.model);
  result.model.kv =
      options.kv.Make(result.model, options.model.CalibrationDevice(options.model.MakeDevice()));
  SaveModel(result.model, options.out, options.model.model);

  const int64_t bytes = ModelBytes(result.model);
  if (options.json) {
    const nlohmann::ordered_json out = {{"out", options.out.string()},
                                        {"weights", options.weights},
                                        {"kv", result.model.kv.name},
                                        {"weight_bits", result.effective_bits},
                                        {"model_bytes", bytes},
                                        {"relative_mse", result.relative_mse},
                                        {"zero_groups", result.zero_groups}};
    fmt::print("{}\n", out.dump());
    return;
  }
  fmt::print(
      "{}: weights {} ({:.3f} bits a weight with all overheads, relative MSE {:.5f}), KV {}, {} in all\n",
      options.out.string(), options.weights, result.effective_bits, result.relative_mse, result.model.kv.name,
      Size(bytes));
  if (result.zero_groups > 0) fmt::print("{} groups of weights are all zero\n", result.zero_groups);
}

}  // namespace

void AddQuantize(CLI::App& app) {
  CLI::App* command = app.add_subcommand("quantize", "Quantise a model's weights and train its KV codebooks");
  const auto options = std::make_shared<Options>();
  options->model.Add(*command);
  options->model.AddDevice(*command);
  command
      ->add_option("--weights", options->weights,
                   "Weight format: a name, VQ<v,b,R>, or a .json file; \"original\": as loaded")
      ->capture_default_str();
  options->kv.Add(*command);
  command->add_option("-o,--out", options->out, "The Hugging Face directory to write")->required();
  command->add_option("--seed", options->seed, "Seed of k-means and rotations")->capture_default_str();
  command->add_flag("--json", options->json, "Print {\"out\":,\"weights\":,\"weight_bits\":,...}");
  command->callback([options] { Run(*options); });
}

}  // namespace vqllm::cli
