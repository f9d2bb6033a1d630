#include "kernels/cpu/linear_int.h"

#include <algorithm>

#include "kernels/cpu/aligned.h"
#include "kernels/cpu/linear_int_kernels.h"
#include "vq/base/math.h"

namespace vqllm::cpu {
namespace {

constexpr int64_t kMaxBlock = 128;  // columns that share a scale of the activations
constexpr int64_t kPieceBlocks = 32;

class IntLinear final : public StoredLinear {
 public:
  IntLinear(const Tensor& t, std::vector<float> bias, bool exact, FusedKernel kernel)
      : StoredLinear(t, std::move(bias), std::move(kernel), kIntStrip), exact_(exact), blocks_(IntBlocks(t)) {
    const int64_t strips = CeilDiv(t.rows, kIntStrip);
    const int64_t groups = blocks_.groups();
    strip_bytes_ = blocks_.count() * blocks_.padded * kIntStrip * t.format.bits / 8;
    codes_.resize(static_cast<size_t>(strips * strip_bytes_));
    scales_.resize(static_cast<size_t>(strips * groups * kIntStrip));
    zeros_.resize(scales_.size());
    std::vector<uint16_t> row(static_cast<size_t>(t.cols));
    for (int64_t r = 0; r < t.rows; ++r) {
      t.codes[0].UnpackRow(r, 0, t.cols, row.data());
      PackRow(t.format.bits, r, row.data());
      for (int64_t g = 0; g < groups; ++g) {
        const size_t from = static_cast<size_t>(r * groups + g);
        const size_t to = static_cast<size_t>((r / kIntStrip * groups + g) * kIntStrip + r % kIntStrip);
        scales_[to] = t.scales[from].bits;
        zeros_[to] = t.format.symmetric ? static_cast<uint8_t>(1 << (t.format.bits - 1)) : t.zeros[from];
      }
    }
    view_ = {t.format.bits, t.rows,       t.cols,         &blocks_,
             codes_.data(), strip_bytes_, scales_.data(), zeros_.data()};
    bytes_ =
        static_cast<int64_t>(codes_.size() + 2 * scales_.size() + (t.format.symmetric ? 0 : zeros_.size()));
  }

  int64_t bytes() const override { return bytes_; }

  Operand FusedOperand() const override {
    if (exact_) return {};
    Operand operand;
    operand.kind = Operand::Kind::kInt8;
    operand.block = blocks_.group << 8 | blocks_.size;
    operand.row_bytes = IntOperandBytes(blocks_);
    operand.pieces = CeilDiv(blocks_.count(), kPieceBlocks);
    return operand;
  }

  void PrepareOperand(const float* x, int64_t piece, uint8_t* operand) const override {
    const int64_t begin = piece * kPieceBlocks;
    QuantizeActivations(x, blocks_, begin, std::min(blocks_.count(), begin + kPieceBlocks), operand);
  }

 protected:
  void Fused(MatrixView<const float> x, const uint8_t* operand, int64_t begin, int64_t end,
             MatrixView<float> y) const override {
    if (exact_) {
      IntProductExact(view_, x, begin, end, y);
    } else {
      IntProduct(view_, operand, begin, end, y);
    }
  }

  bool TileByColumns() const override { return true; }
  void DecodeTile(int64_t begin, int64_t end, float* tile) const override {
    IntDecode(view_, begin, end, tile);
  }

 private:
  /// A unit is 32 columns of a strip of 16 rows. Of a vector of 64 bytes, byte 4 i + j belongs to row i and
  /// to column j of a quad; `bits` says which quads share the byte (see linear_int_kernels.h).
  void PackRow(int bits, int64_t r, const uint16_t* codes) {
    uint8_t* strip = codes_.data() + r / kIntStrip * strip_bytes_;
    const int64_t lane = r % kIntStrip * 4;
    for (int64_t b = 0; b < blocks_.count(); ++b) {
      for (int64_t c = blocks_.Begin(b); c < blocks_.End(b); ++c) {
        const int64_t at = b * blocks_.padded + c - blocks_.Begin(b);
        uint8_t* unit = strip + at / 32 * 64 * bits;
        const int64_t quad = at % 32 / 4;
        const int64_t byte = lane + at % 4;
        const uint32_t code = codes[c];
        switch (bits) {
          case 8:
            unit[64 * quad + byte] = static_cast<uint8_t>(code);
            break;
          case 4:
            unit[64 * (quad / 2) + byte] |= static_cast<uint8_t>(code << (4 * (quad % 2)));
            break;
          case 3:
            unit[128 + byte] |= static_cast<uint8_t>((code >> 2) << quad);
            [[fallthrough]];
          default:
            unit[64 * (quad / 4) + byte] |= static_cast<uint8_t>((code & 3) << (2 * (quad % 4)));
        }
      }
    }
  }

  bool exact_;
  Blocks blocks_;
  int64_t strip_bytes_ = 0;
  int64_t bytes_ = 0;
  AlignedVector<uint8_t> codes_;
  AlignedVector<uint16_t> scales_;
  AlignedVector<uint8_t> zeros_;
  IntView view_;

  static Blocks IntBlocks(const Tensor& t) {
    const int64_t group = GroupColumns(t);
    return Blocks(t.cols, group, std::min(group, kMaxBlock), 32);
  }
};

}  // namespace

std::unique_ptr<StoredLinear> PrepareInt(const Tensor& weights, std::vector<float> bias, bool exact,
                                         FusedKernel kernel) {
  return std::make_unique<IntLinear>(weights, std::move(bias), exact, std::move(kernel));
}

}  // namespace vqllm::cpu
