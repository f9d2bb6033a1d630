#pragma once

#include <cstdint>

#include "kernels/cpu/linear_kernel.h"

// The vector code of linear_int.cc.
namespace vqllm::cpu {

inline constexpr int64_t kIntStrip = 16;  ///< rows that lie together, one in each 32-bit lane

/// Codes lie in units of 32 columns x 16 rows: 64 * bits bytes. A quad is 4 columns; byte 4 i + j of a vector
/// of 64 bytes belongs to row i, column j of a quad.
///   8 bits: vector q holds quad q.
///   4 bits: vector q / 2, bits 4 (q % 2)...
///   2 bits: vector q / 4, bits 2 (q % 4)...
///   3 bits: the low two as 2 bits, then a vector whose bit q is the third bit of quad q.
struct IntView {
  int bits = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  const Blocks* blocks = nullptr;
  const uint8_t* codes = nullptr;  ///< [strip][block][unit][64 * bits]
  int64_t strip_bytes = 0;
  const uint16_t* scales = nullptr;  ///< binary16, [strip][group][16]
  const uint8_t* zeros = nullptr;    ///< [strip][group][16]
};

/// An operand row: int8 [count][padded], then for each block its scale (float) and the sum of its integers
/// (int32).
inline int64_t IntOperandBytes(const Blocks& blocks) {
  return (blocks.count() * (blocks.padded + 8) + 63) / 64 * 64;
}

/// Blocks [begin, end) of a row of x into its operand row.
void QuantizeActivations(const float* x, const Blocks& blocks, int64_t begin, int64_t end, uint8_t* operand);

/// y [m, rows] at outputs [begin, end) from operand rows; begin is a multiple of 16.
void IntProduct(const IntView& w, const uint8_t* operand, int64_t begin, int64_t end, MatrixView<float> y);
void IntProductExact(const IntView& w, MatrixView<const float> x, int64_t begin, int64_t end,
                     MatrixView<float> y);

/// Rows [begin, end) as floats, [cols][end - begin].
void IntDecode(const IntView& w, int64_t begin, int64_t end, float* tile);

}  // namespace vqllm::cpu
