#include <fmt/format.h>

#include "runtime/model/model.h"
#include "vq/base/progress.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

/// A matrix as fp32, whatever it is stored in.
std::vector<float> Floats(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.rows * tensor.cols));
  Dequantize(tensor, 0, {values.data(), tensor.rows, tensor.cols});
  return values;
}

}  // namespace

const std::vector<LinearSlot>& LinearSlots() {
  static const std::vector<LinearSlot> slots = {
      {"self_attn.q_proj", &LayerWeights::q}, {"self_attn.k_proj", &LayerWeights::k},
      {"self_attn.v_proj", &LayerWeights::v}, {"self_attn.o_proj", &LayerWeights::o},
      {"mlp.gate_proj", &LayerWeights::gate}, {"mlp.up_proj", &LayerWeights::up},
      {"mlp.down_proj", &LayerWeights::down},
  };
  return slots;
}

ModelQuantization QuantizeModel(const Model& model, const Format& format, uint64_t seed, bool show_progress) {
  ModelQuantization result{.model = model};
  const int64_t matrices = static_cast<int64_t>(model.layers.size() * LinearSlots().size());
  Progress progress("quantising to " + format.name, show_progress ? matrices : 0);
  double error = 0;
  double energy = 0;
  for (size_t index = 0; index < model.layers.size(); ++index) {
    for (const LinearSlot& slot : LinearSlots()) {
      const Tensor& from = (model.layers[index].*slot.member).weights;
      const std::vector<float> values = Floats(from);
      QuantizeOptions options;
      options.seed = seed;
      QuantizeReport report;
      (result.model.layers[index].*slot.member).weights =
          Quantize(format, {values.data(), from.rows, from.cols}, options,
                   fmt::format("model.layers.{}.{}", index, slot.name), &report);
      double squares = 0;
      for (const float value : values) squares += static_cast<double>(value) * value;
      error += report.relative_mse * squares;
      energy += squares;
      result.zero_groups += report.zero_groups;
      progress.Step();
    }
  }
  result.relative_mse = energy > 0 ? error / energy : 0;
  result.effective_bits = WeightBits(result.model);
  return result;
}

int64_t ModelBytes(const Model& model) {
  int64_t bytes = StoredBytes(model.embedding) + static_cast<int64_t>(model.final_norm.size() * sizeof(Half));
  if (!model.config.tied_embeddings) bytes += StoredBytes(model.lm_head);
  for (const LayerWeights& layer : model.layers) {
    bytes += static_cast<int64_t>((layer.attention_norm.size() + layer.mlp_norm.size()) * sizeof(Half));
    for (const LinearSlot& slot : LinearSlots()) {
      const LinearWeights& linear = layer.*slot.member;
      bytes += StoredBytes(linear.weights) + static_cast<int64_t>(linear.bias.size() * sizeof(Half));
    }
  }
  return bytes;
}

double WeightBits(const Model& model) {
  double bits = 0;
  double weights = 0;
  for (const LayerWeights& layer : model.layers) {
    for (const LinearSlot& slot : LinearSlots()) {
      const Tensor& tensor = (layer.*slot.member).weights;
      bits += 8.0 * static_cast<double>(StoredBytes(tensor));
      weights += static_cast<double>(tensor.rows * tensor.cols);
    }
  }
  return bits / weights;
}

}  // namespace vqllm
