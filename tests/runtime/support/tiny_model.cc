#include "tests/runtime/support/tiny_model.h"

#include <cmath>

#include "runtime/model/load.h"
#include "vq/base/file.h"
#include "vq/base/rng.h"
#include "vq/checkpoint/safetensors_writer.h"
#include "vq/quantizer.h"

namespace vqllm::test {
namespace {

std::vector<float> Random(Rng& rng, int64_t count, float deviation) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = deviation * rng.Normal();
  return values;
}

/// GPT-2's printable stand-ins for bytes, as UTF-8.
std::vector<std::string> ByteTokens() {
  std::vector<std::string> tokens;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int code = printable ? byte : next++;
    std::string text;
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xc0 | code >> 6);
      text += static_cast<char>(0x80 | (code & 0x3f));
    }
    tokens.push_back(text);
  }
  return tokens;
}

nlohmann::json TinyTokenizer() {
  nlohmann::json vocab = nlohmann::json::object();
  const std::vector<std::string> bytes = ByteTokens();
  for (size_t i = 0; i < bytes.size(); ++i) vocab[bytes[i]] = i;
  nlohmann::json added = nlohmann::json::array();
  for (const auto& [id, text] : {std::pair{256, "<s>"}, {257, "</s>"}, {258, "<x>"}}) {
    added.push_back({{"id", id},
                     {"content", text},
                     {"special", true},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false}});
  }
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
}

std::vector<double> Dense(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.rows * tensor.cols));
  Dequantize(tensor, 0, {values.data(), tensor.rows, tensor.cols});
  return {values.begin(), values.end()};
}

using Matrix = std::vector<std::vector<double>>;

Matrix Multiply(const Matrix& x, const LinearWeights& linear) {
  const std::vector<double> w = Dense(linear.weights);
  const size_t cols = static_cast<size_t>(linear.weights.cols);
  Matrix y;
  for (const std::vector<double>& row : x) {
    std::vector<double>& out = y.emplace_back();
    for (size_t r = 0; r < static_cast<size_t>(linear.weights.rows); ++r) {
      double sum = linear.bias.empty() ? 0.0 : static_cast<double>(linear.bias[r]);
      for (size_t c = 0; c < cols; ++c) sum += row[c] * w[r * cols + c];
      out.push_back(sum);
    }
  }
  return y;
}

Matrix Norm(const Matrix& x, const std::vector<float>& weight, double epsilon) {
  Matrix y = x;
  for (std::vector<double>& row : y) {
    double squares = 0;
    for (const double value : row) squares += value * value;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(row.size()) + epsilon);
    for (size_t i = 0; i < row.size(); ++i) row[i] *= factor * static_cast<double>(weight[i]);
  }
  return y;
}

void RotateRow(std::vector<double>& row, const std::vector<double>& frequencies, double attention,
               size_t position) {
  const size_t half = frequencies.size();
  for (size_t head = 0; head < row.size(); head += 2 * half) {
    for (size_t j = 0; j < half; ++j) {
      const double angle = static_cast<double>(position) * frequencies[j];
      const double a = row[head + j];
      const double b = row[head + j + half];
      row[head + j] = attention * (a * std::cos(angle) - b * std::sin(angle));
      row[head + j + half] = attention * (b * std::cos(angle) + a * std::sin(angle));
    }
  }
}

Matrix Attention(const ModelConfig& c, Matrix q, Matrix k, const Matrix& v) {
  const std::vector<double> frequencies = RopeFrequencies(c.rope, c.head_dim);
  const double attention = c.rope.scaling == RopeScaling::kYarn ? 0.1 * std::log(c.rope.factor) + 1 : 1;
  const size_t d = static_cast<size_t>(c.head_dim);
  for (size_t t = 0; t < q.size(); ++t) {
    RotateRow(q[t], frequencies, attention, t);
    RotateRow(k[t], frequencies, attention, t);
  }
  Matrix out(q.size(), std::vector<double>(q[0].size()));
  for (size_t head = 0; head < static_cast<size_t>(c.heads); ++head) {
    const size_t kv = head * static_cast<size_t>(c.kv_heads) / static_cast<size_t>(c.heads);
    for (size_t t = 0; t < q.size(); ++t) {
      std::vector<double> p;
      const size_t first = c.sliding_window > 0 && t + 1 > static_cast<size_t>(c.sliding_window)
                               ? t + 1 - static_cast<size_t>(c.sliding_window)
                               : 0;
      double total = 0;
      for (size_t s = first; s <= t; ++s) {
        double dot = 0;
        for (size_t i = 0; i < d; ++i) dot += q[t][head * d + i] * k[s][kv * d + i];
        p.push_back(std::exp(dot / std::sqrt(static_cast<double>(d))));
        total += p.back();
      }
      for (size_t s = first; s <= t; ++s) {
        for (size_t i = 0; i < d; ++i) out[t][head * d + i] += p[s - first] / total * v[s][kv * d + i];
      }
    }
  }
  return out;
}

void AddTo(Matrix& x, const Matrix& y) {
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t i = 0; i < x[t].size(); ++i) x[t][i] += y[t][i];
  }
}

}  // namespace

nlohmann::json TinyConfig() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 64},
          {"intermediate_size", 128},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 259},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", true},
          {"bos_token_id", 256},
          {"eos_token_id", 257}};
}

void WriteTinyModel(const std::filesystem::path& folder, const nlohmann::json& json, int lm_head,
                    uint64_t seed) {
  std::filesystem::create_directories(folder);
  WriteFileAtomically(folder / "config.json", json.dump());
  WriteFileAtomically(folder / "tokenizer.json", TinyTokenizer().dump());
  WriteFileAtomically(
      folder / "tokenizer_config.json",
      nlohmann::json{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"add_bos_token", true}}.dump());
  const ModelConfig c = ParseModelConfig(json.dump(), "", "config.json");
  Rng rng(seed);
  SafetensorsWriter writer(folder / "model.safetensors");
  const std::vector<float> embedding = Random(rng, c.vocab * c.hidden, 0.7f);
  writer.Add("model.embed_tokens.weight", {c.vocab, c.hidden}, embedding);
  if (lm_head == 1) writer.Add("lm_head.weight", {c.vocab, c.hidden}, embedding);
  Rng other(seed + 1);  // the layers stay the same whatever the lm_head
  if (lm_head == 2)
    writer.Add("lm_head.weight", {c.vocab, c.hidden}, Random(other, c.vocab * c.hidden, 0.7f));
  for (int layer = 0; layer < c.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    for (const LinearSlot& slot : LinearSlots()) {
      const auto [rows, cols] = LinearShape(c, slot);
      writer.Add(prefix + slot.name + ".weight", {rows, cols},
                 Random(rng, rows * cols, 1.2f / std::sqrt(static_cast<float>(cols))));
      const bool qkv = slot.member == &LayerWeights::q || slot.member == &LayerWeights::k ||
                       slot.member == &LayerWeights::v;
      const bool o = slot.member == &LayerWeights::o;
      if (qkv ? c.attention_bias : o ? c.attention_output_bias : c.mlp_bias) {
        writer.Add(prefix + slot.name + ".bias", {rows}, Random(rng, rows, 0.3f));
      }
    }
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"}) {
      std::vector<float> weight = Random(rng, c.hidden, 0.1f);
      for (float& value : weight) value += 1;
      writer.Add(prefix + norm, {c.hidden}, weight);
    }
  }
  writer.Add("model.norm.weight", {c.hidden}, std::vector<float>(static_cast<size_t>(c.hidden), 1.0f));
  writer.Finish();
}

std::vector<double> ReferenceLogits(const Model& model, const std::vector<int32_t>& tokens) {
  const ModelConfig& c = model.config;
  const std::vector<double> embedding = Dense(model.embedding);
  Matrix x;
  for (const int32_t token : tokens) {
    const auto row = embedding.begin() + token * c.hidden;
    x.emplace_back(row, row + c.hidden);
  }
  for (const LayerWeights& layer : model.layers) {
    const Matrix h = Norm(x, layer.attention_norm, static_cast<double>(c.norm_epsilon));
    AddTo(x,
          Multiply(Attention(c, Multiply(h, layer.q), Multiply(h, layer.k), Multiply(h, layer.v)), layer.o));
    const Matrix g = Norm(x, layer.mlp_norm, static_cast<double>(c.norm_epsilon));
    Matrix gate = Multiply(g, layer.gate);
    const Matrix up = Multiply(g, layer.up);
    for (size_t t = 0; t < gate.size(); ++t) {
      for (size_t i = 0; i < gate[t].size(); ++i)
        gate[t][i] = gate[t][i] / (1 + std::exp(-gate[t][i])) * up[t][i];
    }
    AddTo(x, Multiply(gate, layer.down));
  }
  const Matrix logits = Multiply(Norm(x, model.final_norm, static_cast<double>(c.norm_epsilon)),
                                 {.weights = model.lm_head, .bias = {}});
  std::vector<double> flat;
  for (const std::vector<double>& row : logits) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

double RelativeError(const std::vector<double>& exact, const std::vector<float>& found) {
  double difference = exact.size() == found.size() ? 0 : INFINITY;
  double largest = 0;
  for (size_t i = 0; i < exact.size() && i < found.size(); ++i) {
    difference = std::max(difference, std::fabs(exact[i] - static_cast<double>(found[i])));
    largest = std::max(largest, std::fabs(exact[i]));
  }
  return difference / largest;
}

}  // namespace vqllm::test
