#pragma once

#include <cstdint>
#include <vector>

#include "vq/tensor.h"

namespace vqllm {

/// In which order a kernel reads the codes of a weight matrix. All words are 32 bits.
///
/// A *unit* is what is decoded at once: the codes of all stages of one subvector, or a run of scalar codes;
/// `unit_rows` x `unit_cols` weights in `unit_bits` bits. `piece_units` units that are neighbours along the
/// reduction form a *piece*, for which a lane loads activations at once. `chunk_pieces` pieces form a
/// *chunk*: what one lane loads of one row, `chunk_words` words. `lanes_k` chunks side by side form a
/// *group*; its pieces are dealt out in turn, so piece p of lane l is the (p * lanes + l)-th of the group and
/// a warp reads neighbouring activations. A *segment* is a run of chunks that share a codebook; groups
/// restart in each, and the last group of a segment has as many lanes as there are chunks left. A *row tile*
/// is `lanes_row` * `row_slots` rows of units.
///
///   words: [row tile][segment][group][row slot][plane][lane of rows][lane of k][vector]
///
/// where a plane is one load instruction of the warp, `vector_words` words a lane: always consecutive bytes.
struct WeightLayout {
  int unit_rows = 1;
  int unit_cols = 8;
  int unit_bits = 0;
  int piece_units = 1;
  int chunk_pieces = 1;
  int chunk_words = 1;
  int vector_words = 1;  ///< 1, 2 or 4; divides chunk_words
  int lanes_row = 1;     ///< lanes_row * lanes_k == 32
  int lanes_k = 32;
  int row_slots = 1;
  bool pad_groups = false;  ///< every group has all its lanes: chunks of zeros fill the last one

  int64_t rows = 0;  ///< n
  int64_t cols = 0;  ///< k
  int64_t row_tiles = 0;
  int segments = 1;
  int64_t segment_chunks = 0;  ///< chunks of a full segment
  int64_t last_chunks = 0;     ///< chunks of the last segment
  int64_t segment_cols = 0;    ///< columns of a full segment

  /// Units that make whole vectors of four columns, of eight where a piece has them: what activations are
  /// read for at once.
  int FragmentUnits() const {
    const int units = unit_cols % 4 == 0 ? 1 : unit_cols % 2 == 0 ? 2 : 4;
    const bool doubles = unit_rows == 1 && units * unit_cols % 8 == 4 && piece_units % (2 * units) == 0;
    return doubles ? 2 * units : units;
  }
  int PieceCols() const { return piece_units * unit_cols; }
  int ChunkUnits() const { return piece_units * chunk_pieces; }
  int ChunkCols() const { return ChunkUnits() * unit_cols; }
  int Planes() const { return chunk_words / vector_words; }
  int TileUnitRows() const { return lanes_row * row_slots; }
  int TileRows() const { return TileUnitRows() * unit_rows; }
  int64_t TotalChunks() const { return (segments - 1) * segment_chunks + last_chunks; }
  int64_t TileWords() const { return TotalChunks() * TileUnitRows() * chunk_words; }
  int64_t Words() const { return row_tiles * TileWords(); }
  bool operator==(const WeightLayout&) const = default;
};

/// Fills in what follows from the choices and the shape: vector_words, row_tiles, segments and their chunks.
/// `segment_cols` 0: one segment of all columns.
void CompleteLayout(WeightLayout& layout, int64_t rows, int64_t cols, int64_t segment_cols);

/// How scalar codes lie in a unit, so that masks and one lop3 make pairs of fp16 of them.
enum class ScalarPacking : uint8_t {
  kPlain,   ///< code e at bit e * bits
  kPaired,  ///< 2, 4 bits: code 2j at bit j * bits, code 2j + 1 at bit 16 + j * bits of its word; 3 bits: 32
            ///< codes in 3 words, five such pairs a word, the last pair spread over bits 15 and 31 of the
            ///< three
};
/// Columns of a unit of `bits`-wide codes: 8 at 4 and 8 bits, 16 at 2, 32 at 3 where `group` (0: none) is a
/// multiple of it, which is paired packing (8 bits: plain); else the largest of 8, 4, 2, 1 that divides it.
int ScalarUnitCols(int bits, int group);
ScalarPacking PackingOf(int bits, int unit_cols);

/// Words of one padded codebook entry: 1, 2, 4 or 8, for 2, 4, 8 or 16 fp16 values.
int EntryWords(int subvector);

/// Where the scale of a row and group lies: [row tile][group][row of the tile], so that lanes side by side
/// over rows read neighbours, and lanes along the reduction little more than that.
inline int64_t ScaleIndex(const WeightLayout& layout, int64_t groups, int64_t row, int64_t group) {
  const int64_t rows = layout.TileRows();
  return (row / rows * groups + group) * rows + row % rows;
}

/// A weight matrix as the emitted kernels read it; upload each array as it is. Empty arrays have no parameter
/// of their own in the kernel.
struct DeviceWeights {
  std::vector<uint32_t> codes;  ///< WeightLayout
  std::vector<uint32_t>
      codebooks;                 ///< table: [stage][codebook][entry][EntryWords]; lattice: 256 packed vectors
  std::vector<uint32_t> scales;  ///< fp16 in pairs of 16 bits, in the order of ScaleIndex, even count; with
                                 ///< zero points one word each: the scale, and 1024 + zero_point as fp16
                                 ///< above it
  std::vector<float> factors;    ///< lattice: the scale of the tensor, the factor of stage 1
  int64_t bytes() const;
};

/// Repacks a tensor. Throws Error where a codebook or scale is not finite: padding multiplies entry 0 by
/// zero.
DeviceWeights RepackWeights(const Tensor& tensor, const WeightLayout& layout);

/// Word w of entry `abs_index` of the lattice's table: nibble 2 * value + 8, values 0 2 4 6 1 3 5 7 from the
/// low end, so that one mask gives a pair of neighbours.
uint32_t PackedLatticeVector(int abs_index);

}  // namespace vqllm
