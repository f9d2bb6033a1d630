#include "codegen/layout.h"

#include <array>
#include <cmath>

#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/base/math.h"
#include "vq/base/parallel.h"
#include "vq/lattice.h"

namespace vqllm {
namespace {

/// The bits of one unit, at most 128.
using UnitBits = std::array<uint32_t, 4>;

void PutBits(uint32_t* words, int at, uint32_t value, int bits) {
  const int shift = at % 32;
  words[at / 32] |= value << shift;
  if (shift + bits > 32) words[at / 32 + 1] |= value >> (32 - shift);
}

/// Where bit 0 of code e of a paired unit lies; for the last pair of 3-bit units see below.
int PairedBit(int bits, int e) {
  const int per_word = 2 * (16 / bits);
  return e / per_word * 32 + e % per_word / 2 * bits + e % 2 * 16;
}

UnitBits ScalarUnit(const Tensor& t, const WeightLayout& layout, int64_t row, int64_t unit) {
  UnitBits out{};
  const int bits = t.format.bits;
  const int64_t first = unit * layout.unit_cols;
  const ScalarPacking packing = PackingOf(bits, layout.unit_cols);
  for (int e = 0; e < layout.unit_cols && first + e < t.cols; ++e) {
    const uint32_t code = t.codes[0].Get(row, first + e);
    if (packing == ScalarPacking::kPlain) {
      PutBits(out.data(), e * bits, code, bits);
    } else if (bits == 3 && e >= 30) {
      for (int b = 0; b < 3; ++b) PutBits(out.data(), 32 * b + 15 + 16 * (e - 30), code >> b & 1, 1);
    } else {
      PutBits(out.data(), PairedBit(bits, e), code, bits);
    }
  }
  return out;
}

UnitBits DenseUnit(const Tensor& t, const WeightLayout& layout, int64_t row, int64_t unit) {
  UnitBits out{};
  for (int e = 0; e < layout.unit_cols; ++e) {
    const int64_t col = unit * layout.unit_cols + e;
    if (col < t.cols)
      PutBits(out.data(), e * 16, t.values.Load<uint16_t>(static_cast<size_t>(row * t.cols + col)), 16);
  }
  return out;
}

/// Sign bits 0 2 4 6 1 3 5 7 from the low end: as the values of a packed lattice vector.
uint32_t LatticeCode(uint32_t code) {
  constexpr int kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
  uint32_t signs = 0;
  for (int i = 0; i < 8; ++i) signs |= (code >> kOrder[i] & 1) << i;
  // Bit 0 stands for the parity of all eight and for the sign of value 0 at once; it is bit 0 in either
  // order.
  return (code & 0xff00u) | signs;
}

UnitBits CodeUnit(const Tensor& t, int64_t code_row, int64_t code_col) {
  UnitBits out{};
  int at = 0;
  for (size_t stage = 0; stage < t.codes.size(); ++stage) {
    const int bits = t.codes[stage].bits();
    const uint32_t code = t.codes[stage].Get(code_row, code_col);
    PutBits(out.data(), at, t.format.kind == FormatKind::kLattice ? LatticeCode(code) : code, bits);
    at += bits;
  }
  return out;
}

void CheckFinite(const std::vector<Half>& values, const char* what) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(static_cast<float>(values[i])))
      Fail("repack: {} {}: found {}, allowed: finite values", what, i, static_cast<float>(values[i]));
  }
}

std::vector<uint32_t> RepackCodes(const Tensor& t, const WeightLayout& layout) {
  std::vector<uint32_t> words(static_cast<size_t>(layout.Words()));
  const int64_t unit_rows = CeilDiv(t.rows, layout.unit_rows);
  const int64_t unit_cols = CeilDiv(t.cols, layout.unit_cols);
  const int64_t segment_units = layout.segment_chunks * layout.ChunkUnits();
  ParallelFor(layout.row_tiles, 1, [&](int64_t begin, int64_t end) {
    std::vector<uint32_t> chunk(static_cast<size_t>(layout.chunk_words) + 1);
    for (int64_t tile = begin; tile < end; ++tile) {
      for (int segment = 0; segment < layout.segments; ++segment) {
        const int64_t chunks = segment + 1 < layout.segments ? layout.segment_chunks : layout.last_chunks;
        for (int64_t c = 0; c < chunks; ++c) {
          const int64_t group = c / layout.lanes_k;
          const int64_t lanes = std::min<int64_t>(layout.lanes_k, chunks - group * layout.lanes_k);
          const int64_t lane = c % layout.lanes_k;
          const int64_t group_units = segment * segment_units + group * layout.lanes_k * layout.ChunkUnits();
          const int64_t group_at =
              tile * layout.TileWords() + (segment * layout.segment_chunks + group * layout.lanes_k) *
                                              layout.TileUnitRows() * layout.chunk_words;
          for (int row = 0; row < layout.TileUnitRows(); ++row) {
            const int64_t code_row = tile * layout.TileUnitRows() + row;
            if (code_row >= unit_rows) continue;
            std::fill(chunk.begin(), chunk.end(), 0u);
            for (int u = 0; u < layout.ChunkUnits(); ++u) {
              const int64_t piece = u / layout.piece_units * lanes + lane;
              const int64_t unit = group_units + piece * layout.piece_units + u % layout.piece_units;
              if (unit >= unit_cols) continue;
              const UnitBits bits = t.format.kind == FormatKind::kInt ? ScalarUnit(t, layout, code_row, unit)
                                    : t.format.kind == FormatKind::kDense
                                        ? DenseUnit(t, layout, code_row, unit)
                                        : CodeUnit(t, code_row, unit);
              for (int at = 0; at < layout.unit_bits; at += 32) {
                const int width = std::min(32, layout.unit_bits - at);
                PutBits(chunk.data(), u * layout.unit_bits + at, bits[static_cast<size_t>(at / 32)], width);
              }
            }
            const int slot = row / layout.lanes_row;
            const int row_lane = row % layout.lanes_row;
            for (int w = 0; w < layout.chunk_words; ++w) {
              const int64_t vector =
                  (static_cast<int64_t>(slot * layout.Planes() + w / layout.vector_words) * layout.lanes_row +
                   row_lane) *
                      lanes +
                  lane;
              words[static_cast<size_t>(group_at + vector * layout.vector_words + w % layout.vector_words)] =
                  chunk[static_cast<size_t>(w)];
            }
          }
        }
      }
    }
  });
  return words;
}

/// Stage after stage, entries padded with zeros to whole vectors.
std::vector<uint32_t> RepackCodebooks(const Tensor& t) {
  const int v = t.format.subvector;
  const int entry_words = EntryWords(v);
  std::vector<uint32_t> words;
  for (const std::vector<Half>& books : t.codebooks) {
    CheckFinite(books, "codebook value");
    const size_t first = words.size();
    const size_t entries = books.size() / static_cast<size_t>(v);
    words.resize(first + entries * static_cast<size_t>(entry_words));
    for (size_t e = 0; e < entries; ++e) {
      for (int i = 0; i < v; ++i) {
        words[first + e * static_cast<size_t>(entry_words) + static_cast<size_t>(i / 2)] |=
            static_cast<uint32_t>(books[e * static_cast<size_t>(v) + static_cast<size_t>(i)].bits)
            << 16 * (i % 2);
      }
    }
  }
  return words;
}

/// In the order of ScaleIndex; rows behind the last have zeros.
void RepackScales(const Tensor& t, const WeightLayout& layout, std::vector<uint32_t>& words) {
  const int64_t groups = static_cast<int64_t>(t.scales.size()) / t.rows;
  const auto count = static_cast<size_t>(layout.row_tiles * layout.TileRows() * groups);
  const bool zeros = !t.zeros.empty();
  words.assign(zeros ? count : (count + 1) / 2, 0);
  if (t.scales.empty()) words.clear();
  for (size_t i = 0; i < t.scales.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / groups;
    const auto at = static_cast<size_t>(ScaleIndex(layout, groups, row, static_cast<int64_t>(i) % groups));
    const uint32_t scale = t.scales[i].bits;
    if (zeros) {
      words[at] = scale | FloatToHalfBits(1024.0f + static_cast<float>(t.zeros[i])) << 16;
    } else {
      words[at / 2] |= scale << 16 * (at % 2);
    }
  }
}

}  // namespace

int ScalarUnitCols(int bits, int group) {
  const int whole = bits == 2 ? 16 : bits == 3 ? 32 : 8;
  if (group % whole == 0) return whole;
  int cols = 8;
  while (group % cols != 0) cols /= 2;
  return cols;
}

ScalarPacking PackingOf(int bits, int unit_cols) {
  const bool paired =
      (bits == 4 && unit_cols == 8) || (bits == 2 && unit_cols == 16) || (bits == 3 && unit_cols == 32);
  return paired ? ScalarPacking::kPaired : ScalarPacking::kPlain;
}

int EntryWords(int subvector) { return subvector <= 2 ? 1 : subvector <= 4 ? 2 : subvector <= 8 ? 4 : 8; }

void CompleteLayout(WeightLayout& layout, int64_t rows, int64_t cols, int64_t segment_cols) {
  VQLLM_CHECK(layout.lanes_row * layout.lanes_k == 32 && layout.unit_bits >= 1 && layout.unit_bits <= 128);
  layout.chunk_words =
      static_cast<int>(CeilDiv(static_cast<int64_t>(layout.ChunkUnits()) * layout.unit_bits, 32));
  layout.vector_words = layout.chunk_words % 4 == 0 ? 4 : layout.chunk_words % 2 == 0 ? 2 : 1;
  layout.rows = rows;
  layout.cols = cols;
  layout.row_tiles = CeilDiv(rows, layout.TileRows());
  if (segment_cols <= 0 || segment_cols >= cols) segment_cols = cols;
  layout.segments = static_cast<int>(CeilDiv(cols, segment_cols));
  layout.segment_cols = segment_cols;
  const auto chunks_of = [&](int64_t columns) {
    const int64_t chunks = CeilDiv(columns, layout.ChunkCols());
    return layout.pad_groups ? CeilDiv(chunks, layout.lanes_k) * layout.lanes_k : chunks;
  };
  layout.segment_chunks = chunks_of(segment_cols);
  layout.last_chunks = chunks_of(cols - (layout.segments - 1) * segment_cols);
  // Only whole chunks keep the columns of the next segment where they are expected.
  VQLLM_CHECK(layout.segments == 1 || segment_cols == layout.segment_chunks * layout.ChunkCols(), "{} of {}",
              segment_cols, layout.ChunkCols());
}

int64_t DeviceWeights::bytes() const {
  return static_cast<int64_t>(4 * (codes.size() + codebooks.size() + scales.size() + factors.size()));
}

uint32_t PackedLatticeVector(int abs_index) {
  constexpr int kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) {
    const float value = e8p::AbsTable()[static_cast<size_t>(abs_index)][static_cast<size_t>(kOrder[i])];
    word |= static_cast<uint32_t>(static_cast<int>(2 * value) + 8) << 4 * i;
  }
  return word;
}

DeviceWeights RepackWeights(const Tensor& t, const WeightLayout& layout) {
  VQLLM_CHECK(layout.rows == t.rows && layout.cols == t.cols);
  DeviceWeights out;
  out.codes = RepackCodes(t, layout);
  if (t.format.kind == FormatKind::kTable) out.codebooks = RepackCodebooks(t);
  if (t.format.kind == FormatKind::kLattice) {
    for (int e = 0; e < 256; ++e) out.codebooks.push_back(PackedLatticeVector(e));
    out.factors = {t.scales[0], t.stage_scales.size() > 1 ? t.stage_scales[1] : 0.0f};
  }
  CheckFinite(t.scales, "scale");
  if (t.format.kind == FormatKind::kTable && t.format.scale == ScaleKind::kPerTensor) {
    out.factors = {t.scales[0], 0.0f};
  } else if (t.format.kind != FormatKind::kLattice) {
    RepackScales(t, layout, out.scales);
  }
  return out;
}

}  // namespace vqllm
