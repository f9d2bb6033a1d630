#pragma once

#include <cstdint>
#include <vector>

#include "vq/base/view.h"

// Encoding of tokens, vectorised.
namespace vqllm::cpu {

/// fp16 bits of the two numbers of a group of integers; value = scale * code + offset.
struct IntGroup {
  uint16_t scale = 0;
  uint16_t offset = 0;
};

/// Codes 0 .. levels of one group of n values, rounded to nearest. Asymmetric: the range runs from the
/// smallest to the largest value. Symmetric: the offset is -scale * (levels + 1) / 2. Values beyond the range
/// of fp16 are clamped to it; a NaN or infinity makes the scale NaN, so that the group is read as NaN.
IntGroup EncodeIntGroup(const float* x, int64_t n, int levels, bool symmetric, uint8_t* codes);

/// One codebook laid out for the search: [subvector][entries, padded], and half of each entry's squared norm
/// (infinite behind the last one).
struct EntryColumns {
  const float* values = nullptr;
  const float* half_norms = nullptr;
  int64_t entries = 0;
  int64_t padded = 0;  ///< a multiple of kEntryPad
  int64_t subvector = 0;
};
inline constexpr int64_t kEntryPad = 16;

/// codes[i * code_stride] = the entry nearest to points[i], of n points `stride` floats apart: the largest x
/// . c - |c|^2 / 2 in floats, ties to the lowest index. x is finite.
void NearestCodes(const EntryColumns& columns, const float* points, int64_t stride, int64_t n,
                  int32_t* codes);

}  // namespace vqllm::cpu
