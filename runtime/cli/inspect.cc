#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "runtime/cli/commands.h"
#include "runtime/cli/common.h"
#include "runtime/model/tokenizer.h"

namespace vqllm::cli {
namespace {

struct Options {
  ModelOptions model;
  bool json = false;
};

/// Matrices of the layers by format.
struct FormatUse {
  int64_t matrices = 0;
  int64_t weights = 0;
  int64_t bytes = 0;
};

std::map<std::string, FormatUse> UseOfFormats(const Model& model) {
  std::map<std::string, FormatUse> uses;
  for (const LayerWeights& layer : model.layers) {
    for (const LinearSlot& slot : LinearSlots()) {
      const Tensor& tensor = (layer.*slot.member).weights;
      FormatUse& use = uses[tensor.format.name];
      ++use.matrices;
      use.weights += tensor.rows * tensor.cols;
      use.bytes += StoredBytes(tensor);
    }
  }
  return uses;
}

nlohmann::ordered_json Describe(const Model& model) {
  const ModelConfig& c = model.config;
  nlohmann::ordered_json out = {{"architecture", c.architecture},
                                {"hidden", c.hidden},
                                {"intermediate", c.intermediate},
                                {"layers", c.layers},
                                {"heads", c.heads},
                                {"kv_heads", c.kv_heads},
                                {"head_dim", c.head_dim},
                                {"vocab", c.vocab},
                                {"max_positions", c.max_positions},
                                {"rope_theta", c.rope.theta},
                                {"tied_embeddings", c.tied_embeddings},
                                {"bos", c.bos},
                                {"eos", c.eos},
                                {"tokenizer_vocab", model.tokenizer ? model.tokenizer->vocab_size() : 0},
                                {"embedding", model.embedding.format.name},
                                {"kv", model.kv.name},
                                {"kv_codebooks", !model.kv.codebooks.empty()},
                                {"model_bytes", ModelBytes(model)},
                                {"weight_bits", WeightBits(model)}};
  out["formats"] = nlohmann::ordered_json::array();
  for (const auto& [name, use] : UseOfFormats(model)) {
    out["formats"].push_back(
        {{"format", name},
         {"matrices", use.matrices},
         {"weights", use.weights},
         {"bytes", use.bytes},
         {"effective_bits", 8.0 * static_cast<double>(use.bytes) / static_cast<double>(use.weights)}});
  }
  return out;
}

void Run(const Options& options) {
  const nlohmann::ordered_json out = Describe(options.model.Load());
  if (options.json) {
    fmt::print("{}\n", out.dump(1));
    return;
  }
  for (const auto& [key, value] : out.items()) {
    if (key != "formats")
      fmt::print("{:<16} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  for (const auto& use : out["formats"]) {
    fmt::print("{:<16} {} matrices, {} weights, {}, {:.3f} bits each\n", use["format"].get<std::string>(),
               use["matrices"].get<int64_t>(), use["weights"].get<int64_t>(),
               Size(use["bytes"].get<int64_t>()), use["effective_bits"].get<double>());
  }
}

}  // namespace

void AddInspect(CLI::App& app) {
  CLI::App* command = app.add_subcommand("inspect", "Show a model's shapes, formats and sizes");
  const auto options = std::make_shared<Options>();
  options->model.Add(*command);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { Run(*options); });
}

}  // namespace vqllm::cli
