#include "codegen/bundle.h"

#include <vqllm_device_blocks.h>
#include "vq/base/check.h"

namespace vqllm {

std::string_view DeviceBlock(std::string_view name) {
  for (const internal::EmbeddedText& block : internal::kDeviceBlocks) {
    if (name == block.name) return block.text;
  }
  VQLLM_CHECK(false, "no device block {}", name);
}

std::string BundleBlocks(const std::set<std::string>& names) {
  // What is used stands before what uses it.
  constexpr const char* kOrder[] = {"bits",
                                    "bits_crossing",
                                    "pairs",
                                    "pairs_add",
                                    "pairs_sub",
                                    "pairs_mul",
                                    "pairs_fma",
                                    "floats_f16",
                                    "floats_bf16",
                                    "code_float",
                                    "pairs_to_bf16",
                                    "masked_half",
                                    "lattice_e8p",
                                    "reduce",
                                    "softmax",
                                    "copy_async",
                                    "copy_async_8",
                                    "copy_async_4",
                                    "copy_pipeline",
                                    "store_pairs_4",
                                    "store_pairs_2",
                                    "load_matrices_4",
                                    "load_matrices_2",
                                    "load_matrices_transposed",
                                    "transpose_pairs",
                                    "mma_f16",
                                    "mma_bf16",
                                    "pack_f16",
                                    "pack_bf16",
                                    "shifted_into"};
  std::string text;
  size_t taken = 0;
  for (const char* name : kOrder) {
    if (!names.contains(name)) continue;
    ++taken;
    if (name == std::string_view("bits") && names.contains("bits_crossing")) continue;  // which serves both
    std::string_view block = DeviceBlock(name);
    constexpr std::string_view kPragma = "#pragma once\n";
    VQLLM_CHECK(block.starts_with(kPragma), "{}", name);
    block.remove_prefix(kPragma.size());
    while (block.starts_with('\n')) block.remove_prefix(1);
    if (!text.empty()) text += '\n';
    text += block;
  }
  VQLLM_CHECK(taken == names.size(), "{} of {} blocks have a place in the order", taken, names.size());
  return text;
}

}  // namespace vqllm
