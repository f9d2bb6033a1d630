#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/kv_codec.h"
#include "kernels/cpu/kv_encode.h"
#include "kernels/cpu/vector_ops.h"
#include "vq/base/check.h"
#include "vq/base/math.h"

namespace vqllm::cpu {
namespace {

/// Records that are rows in the sense of attention_rows.h: the loops there read them where vectors fit the
/// head and its groups; other heads (8 channels, groups of 20) are decoded first.
class RowCodec : public KvCodec {
 public:
  void Scores(const PreparedQuad& quad, int head, const uint8_t* const* records, int64_t n,
              float* scores) const override {
    if (!direct_) return KvCodec::Scores(quad, head, records, n, scores);
    RowScores(layout_, quad, records, n, scores);
  }
  void AddValues(const float* weights, int heads, int head, const uint8_t* const* records, int64_t n,
                 float* out) const override {
    if (!direct_) return KvCodec::AddValues(weights, heads, head, records, n, out);
    RowValues(layout_, weights, heads, records, n, out);
  }

 protected:
  RowCodec(const RowLayout& layout, bool direct)
      : KvCodec(layout.bytes, layout.dim), layout_(layout), direct_(direct) {}
  const RowLayout& layout() const { return layout_; }

 private:
  RowLayout layout_;
  bool direct_;
};

class DenseCodec final : public RowCodec {
 public:
  DenseCodec(DType dtype, int head_dim) : RowCodec(Layout(dtype, head_dim), head_dim % kRowPad == 0) {}

  void Encode(MatrixView<const float> x, int, uint8_t* const* records) const override {
    for (int64_t t = 0; t < x.rows; ++t) {
      uint16_t* halves = reinterpret_cast<uint16_t*>(records[t]);  // records of halves are at even addresses
      switch (layout().kind) {
        case RowKind::kF16:
          FloatsToHalves(x.Row(t), x.cols, halves);
          break;
        case RowKind::kBF16:
          std::transform(x.Row(t), x.Row(t) + x.cols, halves, FloatToBFloat16Bits);
          break;
        default:
          std::memcpy(records[t], x.Row(t), static_cast<size_t>(bytes()));
      }
    }
  }

  void Decode(const uint8_t* const* records, int64_t n, int, MatrixView<float> out) const override {
    for (int64_t t = 0; t < n; ++t) {
      const uint16_t* halves = reinterpret_cast<const uint16_t*>(records[t]);
      switch (layout().kind) {
        case RowKind::kF16:
          HalvesToFloats(halves, out.cols, out.Row(t));
          break;
        case RowKind::kBF16:
          BFloat16sToFloats(halves, out.cols, out.Row(t));
          break;
        default:
          std::memcpy(out.Row(t), records[t], static_cast<size_t>(bytes()));
      }
    }
  }

 private:
  static RowLayout Layout(DType dtype, int head_dim) {
    RowLayout layout;
    layout.kind = dtype == DType::kF32   ? RowKind::kF32
                  : dtype == DType::kF16 ? RowKind::kF16
                                         : RowKind::kBF16;
    layout.dim = head_dim;
    layout.bytes = int64_t{head_dim} * BytesPerElement(dtype);
    return layout;
  }
};

/// A real-valued offset costs 8 bits more a group than a zero point and keeps groups that lie far from 0
/// exact.
class IntCodec final : public RowCodec {
 public:
  IntCodec(const Format& f, int head_dim)
      : RowCodec(Layout(f, head_dim), Direct(Layout(f, head_dim))), levels_((1 << f.bits) - 1) {}

  void Encode(MatrixView<const float> x, int, uint8_t* const* records) const override {
    const RowLayout& row = layout();
    std::vector<uint8_t> codes(static_cast<size_t>(row.dim));
    for (int64_t t = 0; t < x.rows; ++t) {
      uint8_t* numbers = records[t] + row.numbers;
      for (int64_t begin = 0; begin < row.dim; begin += row.group) {
        const int64_t n = std::min(row.group, row.dim - begin);
        const IntGroup group =
            EncodeIntGroup(x.Row(t) + begin, n, levels_, row.symmetric, codes.data() + begin);
        std::memcpy(numbers, &group.scale, 2);
        if (!row.symmetric) std::memcpy(numbers + 2, &group.offset, 2);
        numbers += row.symmetric ? 2 : 4;
      }
      if (row.kind == RowKind::kInt8) {
        std::memcpy(records[t], codes.data(), codes.size());
      } else {
        const int64_t half = row.dim / 2;
        for (int64_t c = 0; c < half; ++c) {
          records[t][c] =
              static_cast<uint8_t>(codes[static_cast<size_t>(c)] | codes[static_cast<size_t>(c + half)] << 4);
        }
      }
    }
  }

  void Decode(const uint8_t* const* records, int64_t n, int, MatrixView<float> out) const override {
    const RowLayout& row = layout();
    const int64_t half = row.dim / 2;
    std::vector<uint8_t> codes(static_cast<size_t>(row.dim));
    for (int64_t t = 0; t < n; ++t) {
      const uint8_t* bytes = records[t];
      if (row.kind == RowKind::kInt4) {
        for (int64_t c = 0; c < half; ++c) {
          codes[static_cast<size_t>(c)] = bytes[c] & 15;
          codes[static_cast<size_t>(c + half)] = bytes[c] >> 4;
        }
        bytes = codes.data();
      }
      const uint8_t* numbers = records[t] + row.numbers;
      for (int64_t begin = 0; begin < row.dim; begin += row.group) {
        uint16_t stored[2] = {};
        std::memcpy(stored, numbers, row.symmetric ? 2 : 4);
        numbers += row.symmetric ? 2 : 4;
        const float scale = HalfBitsToFloat(stored[0]);
        const float offset =
            row.symmetric ? -scale * static_cast<float>((levels_ + 1) / 2) : HalfBitsToFloat(stored[1]);
        const int64_t end = std::min(begin + row.group, row.dim);
        for (int64_t c = begin; c < end; ++c) out(t, c) = scale * static_cast<float>(bytes[c]) + offset;
      }
    }
  }

 private:
  static RowLayout Layout(const Format& f, int head_dim) {
    VQLLM_CHECK((f.bits == 8 || f.bits == 4) && head_dim % 2 == 0, "{} for heads of {}", f.name, head_dim);
    RowLayout layout;
    layout.kind = f.bits == 8 ? RowKind::kInt8 : RowKind::kInt4;
    layout.dim = head_dim;
    layout.symmetric = f.symmetric;
    layout.group = f.scale == ScaleKind::kGroup ? std::min(f.group, head_dim) : head_dim;
    layout.numbers = CeilDiv(int64_t{head_dim} * f.bits, 16) * 2;
    layout.bytes = layout.numbers + CeilDiv(head_dim, layout.group) * (f.symmetric ? 2 : 4);
    return layout;
  }
  static bool Direct(const RowLayout& layout) {
    const int64_t step = layout.kind == RowKind::kInt4 ? 2 * kRowPad : kRowPad;
    return layout.dim % step == 0 && (layout.group % kRowPad == 0 || layout.group == layout.dim) &&
           CeilDiv(layout.dim, layout.group) <= kMaxRowGroups;
  }

  int levels_;
};

}  // namespace

std::unique_ptr<KvCodec> MakeRowCodec(const Format& format, int head_dim) {
  if (format.kind == FormatKind::kInt) return std::make_unique<IntCodec>(format, head_dim);
  return std::make_unique<DenseCodec>(format.dtype, head_dim);
}

}  // namespace vqllm::cpu
