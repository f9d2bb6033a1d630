#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "vq/format.h"

namespace vqllm {

/// How the quantised matrices of a Hugging Face directory are laid out: the quant_method of its
/// quantization_config. papers/format.md describes all of them.
enum class QuantMethod : uint8_t { kNone, kGptq, kAwq, kAqlm, kVqllm };
const char* ToString(QuantMethod method);

/// The quantization_config of a directory.
struct QuantizationConfig {
  QuantMethod method = QuantMethod::kNone;
  std::string where;  ///< the file it was read from, for errors

  /// The format of the quantised matrices. kGptq: whether it is symmetric and permuted is found in each
  /// matrix.
  Format format;
  /// kVqllm: matrices in another format than that, by prefix.
  std::map<std::string, Format, std::less<>> overrides;

  /// kGptq: "gptq" stores each zero point less one, "gptq_v2" as it is.
  bool zeros_less_one = false;
  /// kGptq: what the file claims; absent in old files.
  std::optional<bool> symmetric;
  /// kGptq: every matrix must have a g_idx.
  bool act_order = false;
  /// kAqlm: names that other readers must leave alone.
  std::vector<std::string> dense_names;
  /// kGptq: the output matrix is quantised, too.
  bool quantized_lm_head = false;
};

/// The quantization_config of `folder`/config.json, or else `folder`/quantize_config.json as AutoGPTQ wrote
/// it; kNone where there is neither. Throws Error that names file and field on methods and settings that are
/// not read.
QuantizationConfig ReadQuantizationConfig(const std::filesystem::path& folder);

/// The same from the text of the JSON object itself.
QuantizationConfig ParseQuantizationConfig(std::string_view json, const std::string& where);

/// The JSON object that goes under "quantization_config" in config.json; kNone: "null".
std::string ToJson(const QuantizationConfig& config);

/// The name that the format goes by: that of the named format which equals it in all but the name, or one
/// that states what it is ("int3-g32-sym", "VQ<8,4,2>-row"). Checkpoints of other methods than vqllm keep no
/// names.
std::string CanonicalName(const Format& format);

}  // namespace vqllm
