#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "runtime/cli/commands.h"
#include "runtime/cli/common.h"
#include "runtime/generate.h"
#include "runtime/model/tokenizer.h"
#include "vq/base/error.h"

namespace vqllm::cli {
namespace {

struct Options {
  ModelOptions model;
  KvOptions kv;
  std::string prompt;
  int64_t tokens = -1;
  int64_t context = 0;
  SamplingOptions sampling;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool json = false;
};

void Run(const Options& options) {
  ValidateSampling(options.sampling);
  const Model model = options.model.Load();
  const Tokenizer& tokenizer = NeedTokenizer(model);
  GenerateRequest request;
  request.prompt = tokenizer.Encode(options.prompt, {.add_bos = true, .parse_special = true});
  request.max_tokens = options.tokens;
  request.sampling = options.sampling;
  request.stop = options.stop;
  request.ignore_eos = options.ignore_eos;

  const auto device = options.model.MakeDevice();
  const KvCacheSpec kv = options.kv.Make(model, options.model.CalibrationDevice(device));
  Decoder decoder(device, model, options.context > 0 ? options.context : model.config.max_positions);
  TextSink print = [](size_t, std::string_view piece) {
    fmt::print("{}", piece);
    std::fflush(stdout);
  };
  if (!options.json) print(0, options.prompt);
  const GenerateResult result =
      Generate(decoder, kv, tokenizer, {request}, options.json ? TextSink() : print).front();
  if (!options.json) {
    fmt::print("\n");
    return;
  }
  const nlohmann::ordered_json out = {
      {"prompt_ids", request.prompt},
      {"ids", result.ids},
      {"text", result.text},
      {"finish_reason", result.finish == FinishReason::kStop ? "stop" : "length"},
      {"logprobs", result.logprobs},
  };
  fmt::print("{}\n", out.dump());
}

}  // namespace

void AddGenerate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "Continue a text");
  const auto options = std::make_shared<Options>();
  options->model.Add(*command);
  options->model.AddDevice(*command);
  command->add_option("-p,--prompt", options->prompt, "The text to continue");
  command
      ->add_option("-n,--tokens", options->tokens,
                   "New tokens (default: until the end or the context is full)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 32));
  command->add_option("--ctx", options->context, "Context in tokens (default: the model's)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  command->add_option("--temp", options->sampling.temperature, "Temperature; 0 takes the most likely token")
      ->capture_default_str();
  command->add_option("--top-k", options->sampling.top_k, "Keep the k most likely tokens; 0 keeps all")
      ->capture_default_str();
  command
      ->add_option("--top-p", options->sampling.top_p, "Keep the fewest tokens that reach this probability")
      ->capture_default_str();
  command
      ->add_option("--min-p", options->sampling.min_p,
                   "Keep tokens at least this times as likely as the first")
      ->capture_default_str();
  command->add_option("--seed", options->sampling.seed, "Seed of the draws")->capture_default_str();
  command->add_option("--stop", options->stop, "Stop before this text; may be given several times");
  command->add_flag("--ignore-eos", options->ignore_eos, "Go on after an end-of-sequence token");
  options->kv.Add(*command);
  command->add_flag("--json", options->json, "Print {\"prompt_ids\":[],\"ids\":[],\"text\":\"\",...}");
  command->callback([options] { Run(*options); });
}

}  // namespace vqllm::cli
