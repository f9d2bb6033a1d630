#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "runtime/cli/commands.h"
#include "runtime/cli/common.h"
#include "runtime/perplexity.h"

namespace vqllm::cli {
namespace {

struct Options {
  ModelOptions model;
  KvOptions kv;
  std::filesystem::path text;
  int64_t context = 256;
  int64_t stride = 0;
  int64_t tokens = 0;
  int64_t chunks = 0;
  bool llama_cpp = false;
  bool json = false;
};

void Run(const Options& options) {
  const Model model = options.model.Load();
  std::vector<int32_t> text = TokensOfFile(model, options.text);
  if (options.tokens > 0 && static_cast<int64_t>(text.size()) > options.tokens) {
    text.resize(static_cast<size_t>(options.tokens));
  }
  const int64_t stride = options.stride > 0 ? options.stride : options.context;
  const std::vector<ScoredWindow> windows =
      options.llama_cpp ? LlamaCppWindows(text, FirstToken(model), options.context, options.chunks)
                        : StridedWindows(text, FirstToken(model), options.context, stride);
  const auto device = options.model.MakeDevice();
  const KvCacheSpec kv = options.kv.Make(model, options.model.CalibrationDevice(device));
  Decoder decoder(device, model, options.context);
  PerplexitySum sum;
  ScoreWindows(decoder, kv, windows, [&](std::span<const float> logits, int32_t target) {
    sum.Add(NegativeLogLikelihood(logits, target));
  });
  if (options.json) {
    nlohmann::ordered_json out = {{"ppl", sum.perplexity()},
                                  {"ppl_err", sum.error()},
                                  {"tokens", sum.tokens()},
                                  {"ctx", options.context}};
    out["method"] = options.llama_cpp ? "llama.cpp" : "strided";
    if (!options.llama_cpp) out["stride"] = stride;
    out["bos"] = FirstToken(model) >= 0;
    out["kv"] = kv.name;
    fmt::print("{}\n", out.dump());
  } else {
    fmt::print("perplexity {:.4f} +- {:.4f} over {} tokens (ctx {}, {})\n", sum.perplexity(), sum.error(),
               sum.tokens(), options.context,
               options.llama_cpp ? "second halves of llama.cpp's chunks" : fmt::format("stride {}", stride));
  }
}

}  // namespace

void AddPerplexity(CLI::App& app) {
  CLI::App* command = app.add_subcommand("perplexity", "Score a text");
  command->footer(
      "The text is encoded without special tokens and cut into windows of --ctx inputs that end --stride "
      "tokens apart; each\n"
      "token is scored once, in the first window that holds it. A window's first input is BOS, or the token "
      "before it where the\n"
      "model has no BOS. --llama-cpp repeats the windows of llama.cpp's llama-perplexity instead.");
  const auto options = std::make_shared<Options>();
  options->model.Add(*command);
  options->model.AddDevice(*command);
  command->add_option("--text", options->text, "The text")->required()->check(CLI::ExistingFile);
  command->add_option("--ctx", options->context, "Inputs of a window")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  command->add_option("--stride", options->stride, "Tokens between the ends of windows (default: ctx)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  command->add_option("--tokens", options->tokens, "Score only the first tokens of the text")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_flag("--llama-cpp", options->llama_cpp, "The windows of llama.cpp's llama-perplexity");
  command->add_option("--chunks", options->chunks, "With --llama-cpp: how many chunks")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  options->kv.Add(*command);
  command->add_flag("--json", options->json, "Print {\"ppl\":,\"ppl_err\":,\"tokens\":,...}");
  command->callback([options] { Run(*options); });
}

}  // namespace vqllm::cli
