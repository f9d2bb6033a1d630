#include "vq/checkpoint/quantization_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "vq/base/error.h"
#include "vq/base/file.h"
#include "vq/base/json_reader.h"
#include "vq/checkpoint/stored_tensor.h"

namespace vqllm {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kVqllmVersion = 1;
constexpr int kMaxGroup = 1 << 20;

/// Fields "bits" and "group_size" of GPTQ and AWQ.
Format IntFormat(const JsonReader& reader) {
  Format format;
  format.kind = FormatKind::kInt;
  format.bits = static_cast<int>(reader.Int("bits", 2, 8));
  const int64_t group = reader.IntOr("group_size", -1, kMaxGroup, -1);
  if (group == 0) reader.Refuse("group_size", "-1 or at least 1");
  format.scale = group < 0 ? ScaleKind::kPerOutput : ScaleKind::kGroup;
  format.group = group < 0 ? 0 : static_cast<int>(group);
  format.name = CanonicalName(format);
  Validate(format);
  return format;
}

void ParseGptq(const JsonReader& reader, QuantizationConfig& config) {
  config.format = IntFormat(reader);
  config.act_order = reader.BoolOr("desc_act", false);
  if (reader.Has("sym")) config.symmetric = reader.BoolOr("sym", true);
  config.zeros_less_one = true;
  if (reader.Has("checkpoint_format")) {
    config.zeros_less_one = reader.Choice("checkpoint_format", {"gptq", "gptq_v2"}) == 0;
  }
  if (reader.BoolOr("is_marlin_format", false)) reader.Refuse("is_marlin_format", "false");
  if (reader.StringOr("pack_dtype", "int32") != "int32") reader.Refuse("pack_dtype", "int32");
  if (reader.Has("dynamic") && !reader.Raw("dynamic").empty()) {
    reader.Refuse("dynamic", "no settings that differ by module");
  }
  config.quantized_lm_head = reader.BoolOr("lm_head", false);
}

void ParseAwq(const JsonReader& reader, QuantizationConfig& config) {
  config.format = IntFormat(reader);
  if (config.format.bits != 4) reader.Refuse("bits", "4");
  if (!reader.BoolOr("zero_point", true)) reader.Refuse("zero_point", "true");
  if (reader.Has("version")) reader.Choice("version", {"gemm", "GEMM"});
}

void ParseAqlm(const JsonReader& reader, QuantizationConfig& config) {
  Format& format = config.format;
  format.kind = FormatKind::kTable;
  format.subvector = static_cast<int>(reader.Int("in_group_size", 1, 16));
  reader.Int("out_group_size", 1, 1);
  const int64_t bits = reader.Int("nbits_per_codebook", 1, 16);
  format.entries.assign(static_cast<size_t>(reader.Int("num_codebooks", 1, 8)), 1 << bits);
  format.scale = ScaleKind::kPerOutput;
  format.name = CanonicalName(format);
  Validate(format);
}

/// ParseFormat over an object inside another file, which the error then names.
Format NestedFormat(const json& object, const std::string& where) {
  if (!object.is_object()) Fail("{}: allowed: a format as a JSON object", where);
  try {
    return ParseFormat(object.dump());
  } catch (const Error& error) {
    Fail("{}: {}", where, error.what());
  }
}

void ParseVqllm(const JsonReader& reader, QuantizationConfig& config) {
  reader.AllowOnly({"quant_method", "version", "format", "overrides"});
  reader.Int("version", kVqllmVersion, kVqllmVersion);
  config.format = NestedFormat(reader.Raw("format"), reader.where() + ": format");
  if (!reader.Has("overrides")) return;
  for (const auto& [prefix, object] : reader.Object("overrides").value().items()) {
    config.overrides[prefix] = NestedFormat(object, fmt::format("{}: {}", reader.where(), Quoted(prefix)));
  }
}

QuantizationConfig Parse(const json& object, const std::string& where) {
  const JsonReader reader(object, where);
  QuantizationConfig config;
  config.where = where;
  switch (reader.Choice("quant_method", {"gptq", "awq", "aqlm", "vqllm"})) {
    case 0:
      config.method = QuantMethod::kGptq;
      ParseGptq(reader, config);
      break;
    case 1:
      config.method = QuantMethod::kAwq;
      ParseAwq(reader, config);
      break;
    case 2:
      config.method = QuantMethod::kAqlm;
      ParseAqlm(reader, config);
      break;
    default:
      config.method = QuantMethod::kVqllm;
      ParseVqllm(reader, config);
  }
  return config;
}

ordered_json IntJson(const QuantizationConfig& config) {
  const Format& format = config.format;
  ordered_json object;
  object["quant_method"] = ToString(config.method);
  object["bits"] = format.bits;
  object["group_size"] = format.scale == ScaleKind::kGroup ? format.group : -1;
  return object;
}

}  // namespace

const char* ToString(QuantMethod method) {
  constexpr const char* kNames[] = {"none", "gptq", "awq", "aqlm", "vqllm"};
  return kNames[static_cast<size_t>(method)];
}

QuantizationConfig ParseQuantizationConfig(std::string_view text, const std::string& where) {
  return Parse(ParseJson(text, where), where);
}

QuantizationConfig ReadQuantizationConfig(const fs::path& folder) {
  const fs::path main_file = folder / "config.json";
  const json main = ParseJson(ReadTextFile(main_file), main_file.string());
  const JsonReader reader(main, main_file.string());
  if (reader.Has("quantization_config")) {
    return Parse(reader.Raw("quantization_config"), main_file.string() + ": quantization_config");
  }
  if (reader.Has("quip_params"))
    reader.Refuse("quip_params", "quantization_config of gptq, awq, aqlm or vqllm");
  const fs::path old_file = folder / "quantize_config.json";
  std::error_code ignored;
  if (!fs::exists(old_file, ignored)) return {};
  json old = ParseJson(ReadTextFile(old_file), old_file.string());
  if (old.is_object() && !old.contains("quant_method"))
    old["quant_method"] = "gptq";  // all that wrote such files
  return Parse(old, old_file.string());
}

std::string ToJson(const QuantizationConfig& config) {
  const Format& format = config.format;
  ordered_json object;
  switch (config.method) {
    case QuantMethod::kNone:
      break;
    case QuantMethod::kGptq:
      object = IntJson(config);
      object["desc_act"] = config.act_order;
      object["sym"] = config.symmetric.value_or(format.symmetric);
      object["checkpoint_format"] = config.zeros_less_one ? "gptq" : "gptq_v2";
      object["lm_head"] = config.quantized_lm_head;
      object["true_sequential"] = false;
      object["meta"] = {{"quantizer", {"vqllm"}}};
      break;
    case QuantMethod::kAwq:
      object = IntJson(config);
      object["zero_point"] = true;
      object["version"] = "gemm";
      break;
    case QuantMethod::kAqlm:
      object["quant_method"] = "aqlm";
      object["nbits_per_codebook"] = format.CodeBits(0);
      object["num_codebooks"] = format.stages();
      object["out_group_size"] = 1;
      object["in_group_size"] = format.subvector;
      object["linear_weights_not_to_quantize"] = config.dense_names;
      break;
    case QuantMethod::kVqllm:
      object["quant_method"] = "vqllm";
      object["version"] = kVqllmVersion;
      object["format"] = ordered_json::parse(ToJson(format));
      for (const auto& [prefix, other] : config.overrides) {
        object["overrides"][prefix] = ordered_json::parse(ToJson(other));
      }
      break;
  }
  return object.dump();
}

std::string CanonicalName(const Format& format) {
  for (const Format& named : NamedFormats()) {
    Format renamed = format;
    renamed.name = named.name;
    if (renamed == named) return named.name;
  }
  const std::string scale = format.scale == ScaleKind::kGroup       ? fmt::format("-g{}", format.group)
                            : format.scale == ScaleKind::kPerOutput ? "-row"
                                                                    : "";
  if (format.kind == FormatKind::kInt) {
    return fmt::format("int{}{}{}", format.bits, scale, format.symmetric ? "-sym" : "");
  }
  if (format.kind == FormatKind::kTable) {
    return fmt::format("VQ<{},{},{}>{}", format.subvector, format.CodeBits(0), format.stages(), scale);
  }
  return format.name;
}

}  // namespace vqllm
