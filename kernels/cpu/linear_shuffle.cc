#include "kernels/cpu/linear_shuffle.h"

#include <algorithm>

#include "kernels/cpu/aligned.h"
#include "kernels/cpu/linear_choice.h"
#include "kernels/cpu/linear_shuffle_kernels.h"
#include "vq/base/half.h"
#include "vq/base/math.h"

namespace vqllm::cpu {
namespace {

constexpr int64_t kMaxBlock = 128;  // columns that share a scale of the tables: 1.3 % error of a product
constexpr int64_t kPieceBlocks = 8;

/// As many columns as 16-bit sums allow.
Blocks CutBlocks(const Tensor& t) {
  const int64_t v = t.format.subvector;
  const int64_t group = GroupColumns(t);
  const int64_t most = std::min(kMaxBlock, kMaxLookups / t.format.stages() * v);
  return Blocks(t.cols, group, std::max(v, std::min(CeilDiv(group, v) * v, most / v * v)), v);
}

int64_t Lookups(const Tensor& t, const Blocks& blocks) {
  return CeilDiv(blocks.padded / t.format.subvector * t.format.stages(), 2) * 2;
}

class ShuffleLinear final : public StoredLinear {
 public:
  ShuffleLinear(const Tensor& t, std::vector<float> bias, FusedKernel kernel)
      : StoredLinear(t, std::move(bias), std::move(kernel), kShuffleStrip), blocks_(CutBlocks(t)) {
    const Format& f = t.format;
    const int64_t v = f.subvector;
    const int64_t stages = f.stages();
    const int64_t strips = CeilDiv(t.rows, kShuffleStrip);
    const int64_t books = CodebookCount(f, t.rows, t.cols);
    const int64_t lookups = Lookups(t, blocks_);
    codes_.resize(static_cast<size_t>(strips * blocks_.count() * lookups / 2 * 64));
    scales_.resize(static_cast<size_t>(strips * blocks_.groups() * 64));
    books_.resize(static_cast<size_t>(books * stages * v * 16));
    for (int64_t book = 0; book < books; ++book) {
      for (int64_t j = 0; j < stages; ++j) {
        const int64_t entries = f.entries[static_cast<size_t>(j)];
        for (int64_t e = 0; e < entries * v; ++e) {
          books_[static_cast<size_t>(((book * stages + j) * v + e % v) * 16 + e / v)] =
              t.codebooks[static_cast<size_t>(j)][static_cast<size_t>(book * entries * v + e)];
        }
      }
    }
    for (int64_t s = 0; s < Subvectors(f, t.cols); ++s)
      book_of_.push_back(static_cast<int32_t>(CodebookIndex(f, t.rows, t.cols, 0, s)));
    view_ = {t.rows,        t.cols,         v, stages, &blocks_, lookups, codes_.data(), scales_.data(),
             books_.data(), book_of_.data()};
    for (int64_t r = 0; r < t.rows; ++r) PackRow(t, r);
  }

  int64_t bytes() const override {
    return static_cast<int64_t>(codes_.size() + 2 * scales_.size() + 4 * books_.size());
  }

  Operand FusedOperand() const override {
    Operand operand;
    operand.kind = Operand::Kind::kTables8;
    operand.owner = this;
    operand.row_bytes = ShuffleOperandBytes(view_);
    operand.pieces = CeilDiv(blocks_.count(), kPieceBlocks);
    return operand;
  }

  void PrepareOperand(const float* x, int64_t piece, uint8_t* operand) const override {
    const int64_t begin = piece * kPieceBlocks;
    ShuffleTables(view_, x, begin, std::min(blocks_.count(), begin + kPieceBlocks), operand);
  }

 protected:
  void Fused(MatrixView<const float>, const uint8_t* operand, int64_t begin, int64_t end,
             MatrixView<float> y) const override {
    ShuffleProduct(view_, operand, begin, end, y);
  }

  void DecodeTile(int64_t begin, int64_t end, float* tile) const override {
    std::fill(tile, tile + (end - begin) * cols(), 0.0f);
    for (int64_t r = begin; r < end; ++r) {
      float* row = tile + (r - begin) * cols();
      ForCodes(r, [&](int64_t b, int64_t c, int64_t stage, uint8_t* byte, int shift) {
        const float* book =
            view_.books + (view_.book_of[c / view_.subvector] * view_.stages + stage) * view_.subvector * 16;
        const float scale = HalfBitsToFloat(scales_[ScaleAt(r, blocks_.Group(b))]);
        const int64_t n = std::min(view_.subvector, blocks_.End(b) - c);
        for (int64_t i = 0; i < n; ++i) row[c + i] += scale * book[16 * i + (*byte >> shift & 15)];
      });
    }
  }

 private:
  size_t ScaleAt(int64_t row, int64_t group) const {
    return static_cast<size_t>((row / 64 * blocks_.groups() + group) * 64 + row % 64);
  }

  /// Calls f(block, first column, stage, byte, shift) for every code of a row.
  template <typename Function>
  void ForCodes(int64_t row, Function f) const {
    const int64_t lane = row % 64 < 32 ? row % 32 * 2 : row % 32 * 2 + 1;
    for (int64_t b = 0; b < blocks_.count(); ++b) {
      uint8_t* block =
          const_cast<uint8_t*>(codes_.data()) + (row / 64 * blocks_.count() + b) * view_.lookups / 2 * 64;
      int64_t lookup = 0;
      for (int64_t c = blocks_.Begin(b); c < blocks_.End(b); c += view_.subvector) {
        for (int64_t j = 0; j < view_.stages; ++j, ++lookup)
          f(b, c, j, block + lookup / 2 * 64 + lane, lookup % 2 == 0 ? 0 : 4);
      }
    }
  }

  void PackRow(const Tensor& t, int64_t row) {
    std::vector<std::vector<uint16_t>> codes(t.codes.size());
    for (size_t j = 0; j < codes.size(); ++j) {
      codes[j].resize(static_cast<size_t>(t.codes[j].count()));
      t.codes[j].UnpackRow(row, 0, t.codes[j].count(), codes[j].data());
    }
    ForCodes(row, [&](int64_t, int64_t c, int64_t stage, uint8_t* byte, int shift) {
      const uint32_t code = codes[static_cast<size_t>(stage)][static_cast<size_t>(c / view_.subvector)];
      *byte = static_cast<uint8_t>(*byte | code << shift);
    });
    for (int64_t g = 0; g < blocks_.groups(); ++g)
      scales_[ScaleAt(row, g)] = FloatToHalfBits(WeightScale(t, row, g));
  }

  Blocks blocks_;
  AlignedVector<uint8_t> codes_;
  AlignedVector<uint16_t> scales_;
  AlignedVector<float> books_;
  std::vector<int32_t> book_of_;
  ShuffleView view_;
};

}  // namespace

std::string RefuseShuffle(const Tensor& t) {
  const Format& f = t.format;
  if (f.kind != FormatKind::kTable) return "not a table format";
  if (f.axis != Axis::kIn) return "subvectors run along the outputs";
  if (*std::max_element(f.entries.begin(), f.entries.end()) > 16) return "more than 16 entries";
  if (f.scope.kind == ScopeKind::kTile && f.scope.rows < t.rows)
    return "rows of tiles with codebooks of their own";
  const Blocks blocks = CutBlocks(t);
  const double useful = static_cast<double>(Subvectors(f, t.cols) * f.stages());
  const bool serves = static_cast<double>(blocks.count() * Lookups(t, blocks)) <= kMaxPadding * useful + 16;
  return serves ? "" : "blocks padded to whole lookups would grow too much";
}

std::unique_ptr<StoredLinear> PrepareShuffle(const Tensor& weights, std::vector<float> bias,
                                             FusedKernel kernel) {
  return std::make_unique<ShuffleLinear>(weights, std::move(bias), std::move(kernel));
}

}  // namespace vqllm::cpu
