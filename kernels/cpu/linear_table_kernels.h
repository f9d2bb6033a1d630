#pragma once

#include <cstdint>

#include "kernels/cpu/linear_kernel.h"
#include "vq/base/math.h"

// The vector code of linear_table.cc.
namespace vqllm::cpu {

inline constexpr int64_t kTableStrip = 8;  ///< rows of codes that lie together

/// How a code becomes the values of a subvector.
enum class TableKind : uint8_t {
  kCode8,       ///< 8-bit codes, fp32 entries
  kCode16,      ///< 16-bit codes, fp32 entries
  kCode16Half,  ///< 16-bit codes, fp16 entries: books that would fall out of L2
  kLattice,     ///< 16-bit codes of E8P
};

/// A row of codes is an output, or with axis kOut `subvector` outputs. A position is a subvector of inputs,
/// or with kOut one input. Entries are padded with zeros to `width` values.
struct TableView {
  TableKind kind = TableKind::kCode8;
  int64_t width = 0;  ///< 4, 8 or 16
  int64_t subvector = 0;
  bool out = false;
  int64_t code_rows = 0;
  int64_t cols = 0;
  int64_t stages = 0;
  int64_t positions = 0;
  int64_t group_positions = 0;     ///< positions that share a scale
  const uint8_t* codes = nullptr;  ///< [strip][position][stage][8] of 1 or 2 bytes
  /// fp32, [strip][group][8], or with kOut [strip][group][8][width].
  const float* scales = nullptr;
  const void* books = nullptr;           ///< for each stage [book][entry][width]
  const int64_t* stage_begin = nullptr;  ///< [stages], in values
  const int64_t* entries = nullptr;      ///< [stages], of one book
  const int32_t* book_of = nullptr;      ///< [positions], in the first row of tiles
  int64_t tile_strips = 0;               ///< strips of a row of tiles
  int64_t tile_books = 0;                ///< books of a row of tiles
  const float* stage_scales = nullptr;   ///< [stages] (kLattice)
  const float* lattice = nullptr;        ///< absolute values [256][8], sign bits [256][8], shifts [256]

  int64_t groups() const { return CeilDiv(positions, group_positions); }
  int64_t code_bytes() const { return kind == TableKind::kCode8 ? 1 : 2; }
};

/// An operand row: fp32 [positions][width], a subvector of x or, with kOut, one value of x in every lane.
void PadActivations(const TableView& w, const float* x, int64_t begin, int64_t end, uint8_t* operand);

/// y [m, rows] at code rows [begin, end); begin is a multiple of 8.
void TableProduct(const TableView& w, const uint8_t* operand, int64_t begin, int64_t end,
                  MatrixView<float> y);

/// Outputs [begin, end) decoded and scaled: [end - begin][cols], or with kOut [cols][end - begin]; begin is a
/// multiple of 8 rows of codes.
void TableDecode(const TableView& w, int64_t begin, int64_t end, float* tile);

}  // namespace vqllm::cpu
