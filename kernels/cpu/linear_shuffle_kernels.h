#pragma once

#include <cstdint>

#include "kernels/cpu/linear_kernel.h"

// The vector code of linear_shuffle.cc.
namespace vqllm::cpu {

inline constexpr int64_t kShuffleStrip = 64;  ///< rows that lie together, one in each byte

/// A sum of n table values, each at most 255, stays below 2^16.
inline constexpr int64_t kMaxLookups = 256;

/// Bytes 64 p + i of a block hold the codes of lookups 2 p (low half) and 2 p + 1 of one row: row i / 2 where
/// i is even, 32 + i / 2 where it is odd, so that the even and the odd bytes of sums come out in order.
/// Lookup s * stages + j of a block is stage j of its subvector s.
struct ShuffleView {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t subvector = 0;
  int64_t stages = 0;
  const Blocks* blocks = nullptr;
  int64_t lookups = 0;               ///< of a block, padded to an even number
  const uint8_t* codes = nullptr;    ///< [strip][block][lookups / 2][64]
  const uint16_t* scales = nullptr;  ///< binary16, [strip][group][64]
  const float* books = nullptr;      ///< [book][stage][element][16]
  const int32_t* book_of = nullptr;  ///< [subvectors of a row]
};

/// An operand row: uint8 [count][lookups][16], 128 standing for 0, then for each block its scale (float).
inline int64_t ShuffleOperandBytes(const ShuffleView& w) {
  return (w.blocks->count() * (w.lookups * 16 + 4) + 63) / 64 * 64;
}

/// Tables of blocks [begin, end) of a row of x.
void ShuffleTables(const ShuffleView& w, const float* x, int64_t begin, int64_t end, uint8_t* operand);

/// y [m, rows] at outputs [begin, end) from operand rows; begin is a multiple of 64.
void ShuffleProduct(const ShuffleView& w, const uint8_t* operand, int64_t begin, int64_t end,
                    MatrixView<float> y);

}  // namespace vqllm::cpu
