#pragma once

#include <cstdint>

namespace vqllm {

/// An element type of GGUF files. Quantised types store a row as blocks of `elements` weights in `bytes`
/// bytes.
struct GgmlType {
  uint32_t id;
  const char* name;
  int elements;
  int bytes;
  /// Writes the weights of one block, exactly as ggml computes them in float; null for types that are not
  /// read.
  void (*dequantize)(const uint8_t* block, float* weights);
};

/// The type with this number, or null where we do not know it. The table holds all types of ggml, so that
/// files that contain one that is not read are still checked and refused by name.
const GgmlType* FindGgmlType(uint32_t id);

/// Numbers of the types that are more to us than blocks.
inline constexpr uint32_t kGgmlF32 = 0;
inline constexpr uint32_t kGgmlF16 = 1;
inline constexpr uint32_t kGgmlQ4_0 = 2;
inline constexpr uint32_t kGgmlQ8_0 = 8;
inline constexpr uint32_t kGgmlBF16 = 30;

}  // namespace vqllm
