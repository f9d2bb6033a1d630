#pragma once

#include <cstdint>
#include <vector>

#include "vq/base/bytes.h"
#include "vq/base/half.h"
#include "vq/format.h"
#include "vq/packing.h"

namespace vqllm {

/// A matrix W [rows = outputs, cols = inputs] in a Format: the one form in which weights travel between
/// checkpoint, quantiser, oracle, generator and device. Members that the format does not use are empty.
struct Tensor {
  Format format;
  int64_t rows = 0;
  int64_t cols = 0;

  /// kDense: [rows, cols] of format.dtype, little-endian, row-major; may lie in a mapped file at any
  /// alignment.
  Bytes values;

  /// kInt: one element, [rows, cols]. kTable and kLattice: one element a stage, [rows, Subvectors(cols)] with
  /// axis kIn, [Subvectors(rows), cols] with axis kOut. Codes >= entries never occur.
  std::vector<PackedCodes> codes;
  /// kTable: for each stage, [CodebookCount][entries[stage]][subvector].
  std::vector<std::vector<Half>> codebooks;
  /// kPerTensor: 1. kPerOutput: [rows]. kGroup: [rows, Groups].
  std::vector<Half> scales;
  /// kInt, asymmetric: the true zero point (never zero - 1), as `scales`.
  std::vector<uint8_t> zeros;
  /// kLattice: the factor of each stage's values (stage 0: 1).
  std::vector<float> stage_scales;

  /// rotation: signs (+1, -1, or a real factor where a checkpoint has one) of inputs [cols] and outputs
  /// [rows].
  std::vector<Half> sign_in;
  std::vector<Half> sign_out;
  /// permutation: stored column j is column permutation[j] of W.
  std::vector<int32_t> permutation;
  /// input_affine: W[:, c] = stored[:, c] * input_scale[c] + input_offset[c].
  std::vector<Half> input_scale;
  std::vector<Half> input_offset;
};

/// Subvectors that cover n elements; the last one is padded with zeros, and the padding is stored and
/// counted.
inline int64_t Subvectors(const Format& format, int64_t n) {
  return (n + format.subvector - 1) / format.subvector;
}

/// The codes of one stage of a [rows, cols] tensor are CodeRows x CodesPerRow PackedCodes.
int64_t CodeRows(const Format& format, int64_t rows);
int64_t CodesPerRow(const Format& format, int64_t cols);

/// Scales of one row: cols / group rounded up, or 1.
int64_t ScaleGroups(const Format& format, int64_t cols);

/// The scale of the weight at [row, col]; 1 where the format has none.
float ScaleOf(const Tensor& tensor, int64_t row, int64_t col);

/// Codebooks of one stage for a [rows, cols] tensor.
int64_t CodebookCount(const Format& format, int64_t rows, int64_t cols);

/// The codebook of the code at [code_row, code_col] of PackedCodes.
int64_t CodebookIndex(const Format& format, int64_t rows, int64_t cols, int64_t code_row, int64_t code_col);

/// A dense tensor over values that somebody else owns, or over our own floats (rounded to `dtype`).
Tensor DenseTensor(DType dtype, int64_t rows, int64_t cols, Bytes values);
Tensor DenseTensor(DType dtype, int64_t rows, int64_t cols, const float* values);

/// Bytes that the tensor takes as written to disk: what EffectiveBits counts.
int64_t StoredBytes(const Tensor& tensor);

/// Checks that every member has the size that the format and the shape ask for and that every code is below
/// `entries`. Throws Error that begins with `where`. Loaders call it; nothing behind them checks again.
void ValidateTensor(const Tensor& tensor, std::string_view where);

}  // namespace vqllm
