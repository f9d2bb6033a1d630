#include "kernels/cpu/linear_table.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/aligned.h"
#include "kernels/cpu/linear_table_kernels.h"
#include "vq/base/math.h"
#include "vq/lattice.h"

namespace vqllm::cpu {
namespace {

constexpr int64_t kPiecePositions = 512;
// Books of one tile or tensor above this are kept as fp16: in fp32 they would fall out of a core's L2, whose
// other half the codes stream through.
constexpr int64_t kBookBytes = 512 << 10;

bool AlongOut(const Tensor& t) { return t.format.kind == FormatKind::kTable && t.format.axis == Axis::kOut; }

TableKind KindOf(const Tensor& t, int64_t width) {
  const Format& f = t.format;
  if (f.kind == FormatKind::kLattice) return TableKind::kLattice;
  const int64_t most = *std::max_element(f.entries.begin(), f.entries.end());
  if (most <= 256) return TableKind::kCode8;
  return most * f.stages() * width * 4 > kBookBytes ? TableKind::kCode16Half : TableKind::kCode16;
}

int64_t WidthOf(const Tensor& t) { return t.format.subvector <= 4 ? 4 : t.format.subvector <= 8 ? 8 : 16; }

/// Absolute values [256][8], sign bits [256][8], shifts [256], as TableView::lattice.
const AlignedVector<float>& LatticeTable() {
  static const AlignedVector<float> table = [] {
    AlignedVector<float> t(2048 + 2048 + 256);
    for (uint32_t code = 0; code < 256; ++code) {
      const uint32_t parity = static_cast<uint32_t>(std::popcount(code)) & 1;
      for (uint32_t i = 0; i < 8; ++i) {
        t[8 * code + i] = e8p::AbsTable()[code][i];
        t[2048 + 8 * code + i] = ((code ^ parity) >> i & 1) != 0 ? -0.0f : 0.0f;
      }
      t[4096 + code] = parity ? -0.25f : 0.25f;
    }
    return t;
  }();
  return table;
}

class TableLinear final : public StoredLinear {
 public:
  TableLinear(const Tensor& t, std::vector<float> bias, FusedKernel kernel)
      : StoredLinear(t, std::move(bias), std::move(kernel),
                     kTableStrip * (AlongOut(t) ? t.format.subvector : 1)) {
    const Format& f = t.format;
    view_.kind = KindOf(t, WidthOf(t));
    view_.width = WidthOf(t);
    view_.subvector = f.subvector;
    view_.out = AlongOut(t);
    view_.code_rows = t.codes[0].rows();
    view_.cols = t.cols;
    view_.stages = f.stages();
    view_.positions = t.codes[0].count();
    view_.group_positions = view_.out ? GroupColumns(t) : CeilDiv(GroupColumns(t), f.subvector);
    PackCodes(t);
    PackScales(t);
    if (f.kind == FormatKind::kTable) {
      PackBooks(t);
    } else {
      stage_scales_ = t.stage_scales;
      view_.stage_scales = stage_scales_.data();
      view_.lattice = LatticeTable().data();
    }
    for (int64_t p = 0; p < view_.positions; ++p) {
      book_of_.push_back(
          f.kind == FormatKind::kTable ? static_cast<int32_t>(CodebookIndex(f, t.rows, t.cols, 0, p)) : 0);
    }
    view_.book_of = book_of_.data();
    const bool tiles = f.kind == FormatKind::kTable && f.scope.kind == ScopeKind::kTile;
    const int64_t tile_code_rows = tiles ? f.scope.rows / (view_.out ? f.subvector : 1) : view_.code_rows;
    view_.tile_strips = std::max<int64_t>(1, CeilDiv(tile_code_rows, kTableStrip));
    view_.tile_books = tiles ? CeilDiv(t.cols, f.scope.cols) : 0;
  }

  int64_t bytes() const override {
    return static_cast<int64_t>(codes_.size() + 4 * scales_.size() + books_.size());
  }

  Operand FusedOperand() const override {
    Operand operand;
    operand.kind = Operand::Kind::kPadded;
    operand.block = view_.out ? -view_.width : view_.subvector;
    operand.row_bytes = view_.positions * view_.width * 4;
    operand.pieces = CeilDiv(view_.positions, kPiecePositions);
    return operand;
  }

  void PrepareOperand(const float* x, int64_t piece, uint8_t* operand) const override {
    const int64_t begin = piece * kPiecePositions;
    PadActivations(view_, x, begin, std::min(view_.positions, begin + kPiecePositions), operand);
  }

 protected:
  void Fused(MatrixView<const float>, const uint8_t* operand, int64_t begin, int64_t end,
             MatrixView<float> y) const override {
    const int64_t per = view_.out ? view_.subvector : 1;
    TableProduct(view_, operand, begin / per, CeilDiv(end, per), y);
  }

  void DecodeTile(int64_t begin, int64_t end, float* tile) const override {
    TableDecode(view_, begin, end, tile);
  }
  bool TileByColumns() const override { return view_.out; }

 private:
  size_t CodeAt(int64_t row, int64_t position, int64_t stage) const {
    return static_cast<size_t>(
        (((row / kTableStrip * view_.positions + position) * view_.stages + stage) * kTableStrip +
         row % kTableStrip) *
        view_.code_bytes());
  }

  void PackCodes(const Tensor& t) {
    const int64_t strips = CeilDiv(view_.code_rows, kTableStrip);
    codes_.resize(
        static_cast<size_t>(strips * view_.positions * view_.stages * kTableStrip * view_.code_bytes()));
    std::vector<uint16_t> row(static_cast<size_t>(view_.positions));
    for (int64_t stage = 0; stage < view_.stages; ++stage) {
      for (int64_t r = 0; r < view_.code_rows; ++r) {
        t.codes[static_cast<size_t>(stage)].UnpackRow(r, 0, view_.positions, row.data());
        for (int64_t p = 0; p < view_.positions; ++p)
          std::memcpy(codes_.data() + CodeAt(r, p, stage), &row[static_cast<size_t>(p)],
                      static_cast<size_t>(view_.code_bytes()));
      }
    }
    view_.codes = codes_.data();
  }

  void PackScales(const Tensor& t) {
    const int64_t lanes = view_.out ? view_.width : 1;
    const int64_t groups = view_.groups();
    scales_.resize(static_cast<size_t>(CeilDiv(view_.code_rows, kTableStrip) * groups * kTableStrip * lanes));
    for (int64_t r = 0; r < t.rows; ++r) {
      const int64_t row = view_.out ? r / view_.subvector : r;
      const int64_t lane = view_.out ? r % view_.subvector : 0;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at =
            ((row / kTableStrip * groups + g) * kTableStrip + row % kTableStrip) * lanes + lane;
        scales_[static_cast<size_t>(at)] = WeightScale(t, r, g);
      }
    }
    view_.scales = scales_.data();
  }

  void PackBooks(const Tensor& t) {
    const Format& f = t.format;
    const int64_t books = CodebookCount(f, t.rows, t.cols);
    int64_t total = 0;
    for (const int entries : f.entries) {
      entries_.push_back(entries);
      stage_begin_.push_back(total);
      total += books * entries * view_.width;
    }
    const int64_t value_bytes = view_.kind == TableKind::kCode16Half ? 2 : 4;
    books_.resize(static_cast<size_t>(total * value_bytes));
    for (size_t stage = 0; stage < entries_.size(); ++stage) {
      for (int64_t e = 0; e < books * entries_[stage]; ++e) {
        for (int64_t i = 0; i < f.subvector; ++i) {
          const Half half = t.codebooks[stage][static_cast<size_t>(e * f.subvector + i)];
          uint8_t* to = books_.data() + (stage_begin_[stage] + e * view_.width + i) * value_bytes;
          const float value = half;
          std::memcpy(to, value_bytes == 2 ? static_cast<const void*>(&half.bits) : &value,
                      static_cast<size_t>(value_bytes));
        }
      }
    }
    view_.books = books_.data();
    view_.stage_begin = stage_begin_.data();
    view_.entries = entries_.data();
  }

  AlignedVector<uint8_t> codes_;
  AlignedVector<float> scales_;
  AlignedVector<uint8_t> books_;
  std::vector<int64_t> stage_begin_, entries_;
  std::vector<int32_t> book_of_;
  std::vector<float> stage_scales_;
  TableView view_;
};

}  // namespace

std::string TableKernelName(const Tensor& t) {
  switch (KindOf(t, WidthOf(t))) {
    case TableKind::kCode8:
      return "table8-fma";
    case TableKind::kCode16:
      return "table16-fma";
    case TableKind::kCode16Half:
      return "table16-fp16-fma";
    case TableKind::kLattice:
      return "e8p-fma";
  }
  return "";
}

std::string RefuseTable(const Tensor& t) {
  const Format& f = t.format;
  if (f.kind == FormatKind::kLattice) return "";
  if (f.kind != FormatKind::kTable) return "neither a table nor a lattice";
  if (f.scope.kind != ScopeKind::kTile || f.scope.rows >= t.rows) return "";
  const bool whole = f.scope.rows % (kTableStrip * (AlongOut(t) ? f.subvector : 1)) == 0;
  return whole ? "" : "rows of a tile are no multiple of the strip";
}

std::unique_ptr<StoredLinear> PrepareTable(const Tensor& weights, std::vector<float> bias,
                                           FusedKernel kernel) {
  return std::make_unique<TableLinear>(weights, std::move(bias), std::move(kernel));
}

}  // namespace vqllm::cpu
