#include "kernels/cpu/kv_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/vector_ops.h"
#include "vq/base/check.h"
#include "vq/kmeans.h"

namespace vqllm::cpu {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

class DenseCodec final : public KvCodec {
 public:
  DenseCodec(DType dtype, int head_dim)
      : KvCodec(int64_t{head_dim} * BytesPerElement(dtype)), dtype_(dtype), head_dim_(head_dim) {}

  void Encode(const float* x, int, uint8_t* record) const override {
    if (dtype_ == DType::kF32) {
      std::memcpy(record, x, static_cast<size_t>(bytes()));
      return;
    }
    std::vector<uint16_t> stored(static_cast<size_t>(head_dim_));
    if (dtype_ == DType::kF16) {
      FloatsToHalves(x, head_dim_, stored.data());
    } else {
      std::transform(x, x + head_dim_, stored.begin(), FloatToBFloat16Bits);
    }
    std::memcpy(record, stored.data(), static_cast<size_t>(bytes()));
  }

  void Decode(const uint8_t* record, int, int64_t stride, float* out) const override {
    float values[kMaxHead];
    if (dtype_ == DType::kF32) {
      std::memcpy(values, record, static_cast<size_t>(bytes()));
    } else {
      const uint16_t* stored = reinterpret_cast<const uint16_t*>(record);  // records of halves are even
      if (dtype_ == DType::kF16) {
        HalvesToFloats(stored, head_dim_, values);
      } else {
        BFloat16sToFloats(stored, head_dim_, values);
      }
    }
    for (int c = 0; c < head_dim_; ++c) out[c * stride] = values[c];
  }

 private:
  static constexpr int kMaxHead = 1024;
  DType dtype_;
  int head_dim_;
};

/// Record: codes (4-bit: two a byte, low nibble first), then for each group its fp16 scale and, where
/// asymmetric, its fp16 offset: the smallest value of the group. A real-valued offset costs 8 bits more than
/// a zero point and keeps one-sided groups exact.
class IntCodec final : public KvCodec {
 public:
  IntCodec(const Format& f, int head_dim)
      : KvCodec(CodeBytes(f, head_dim) + 2 * Numbers(f) * Groups(f, head_dim)),
        bits_(f.bits),
        symmetric_(f.symmetric),
        head_dim_(head_dim),
        group_(f.scale == ScaleKind::kGroup ? std::min(f.group, head_dim) : head_dim),
        groups_(Groups(f, head_dim)),
        code_bytes_(CodeBytes(f, head_dim)) {}

  void Encode(const float* x, int, uint8_t* record) const override {
    std::fill_n(record, code_bytes_, uint8_t{0});
    for (int64_t g = 0; g < groups_; ++g) {
      const int64_t begin = g * group_;
      const int64_t end = std::min<int64_t>(begin + group_, head_dim_);
      const auto [low, high] = std::minmax_element(x + begin, x + end);
      const int levels = (1 << bits_) - 1;
      float numbers[2] = {};
      if (symmetric_) {
        numbers[0] = std::max(-*low, *high) / static_cast<float>(levels / 2);
      } else {
        numbers[0] = (*high - *low) / static_cast<float>(levels);
        numbers[1] = *low;
      }
      uint16_t stored[2];
      FloatsToHalves(numbers, 2, stored);
      std::memcpy(record + code_bytes_ + g * 2 * count(), stored, static_cast<size_t>(2 * count()));
      const float scale = HalfBitsToFloat(stored[0]);
      const float offset =
          symmetric_ ? -scale * static_cast<float>(levels / 2 + 1) : HalfBitsToFloat(stored[1]);
      for (int64_t c = begin; c < end; ++c) {
        const float steps = scale > 0 ? std::nearbyint((x[c] - offset) / scale) : 0.0f;
        // !(steps > 0) also takes NaN, which must not reach the conversion.
        const int code = !(steps > 0) ? 0 : static_cast<int>(std::min(steps, static_cast<float>(levels)));
        record[bits_ == 8 ? c : c / 2] |= static_cast<uint8_t>(bits_ == 4 && c % 2 ? code << 4 : code);
      }
    }
  }

  void Decode(const uint8_t* record, int, int64_t stride, float* out) const override {
    for (int64_t g = 0; g < groups_; ++g) {
      const int64_t begin = g * group_;
      const int64_t end = std::min<int64_t>(begin + group_, head_dim_);
      uint16_t stored[2] = {};
      std::memcpy(stored, record + code_bytes_ + g * 2 * count(), static_cast<size_t>(2 * count()));
      const float scale = HalfBitsToFloat(stored[0]);
      const float offset =
          symmetric_ ? -scale * static_cast<float>(1 << (bits_ - 1)) : HalfBitsToFloat(stored[1]);
      for (int64_t c = begin; c < end; ++c) {
        const int code = bits_ == 8 ? record[c] : record[c / 2] >> (c % 2 * 4) & 15;
        out[c * stride] = offset + scale * static_cast<float>(code);
      }
    }
  }

 private:
  static int64_t Groups(const Format& f, int head_dim) {
    return f.scale == ScaleKind::kGroup ? CeilDiv(head_dim, std::min(f.group, head_dim)) : 1;
  }
  static int64_t Numbers(const Format& f) { return f.symmetric ? 1 : 2; }
  static int64_t CodeBytes(const Format& f, int head_dim) {
    return CeilDiv(int64_t{head_dim} * f.bits, 16) * 2;
  }
  int64_t count() const { return symmetric_ ? 1 : 2; }

  int bits_;
  bool symmetric_;
  int head_dim_;
  int64_t group_;
  int64_t groups_;
  int64_t code_bytes_;
};

/// Record: for each stage its codes, one for each subvector of the head, a byte or two (above 256 entries)
/// each.
class TableCodec final : public KvCodec {
 public:
  TableCodec(const KvSide& side, int kv_heads, int head_dim)
      : KvCodec(RecordBytes(side.format, head_dim)), v_(side.format.subvector), subvectors_(head_dim / v_) {
    const int64_t books = int64_t{kv_heads} * subvectors_;
    for (size_t stage = 0; stage < side.codebooks.size(); ++stage) {
      Stage& s = stages_.emplace_back();
      s.entries = side.format.entries[stage];
      s.code_bytes = s.entries > 256 ? 2 : 1;
      s.values.assign(side.codebooks[stage].begin(), side.codebooks[stage].end());
      VQLLM_CHECK(static_cast<int64_t>(s.values.size()) == books * s.entries * v_);
      for (int64_t book = 0; book < books; ++book) {
        s.nearest.emplace_back(
            MatrixView<const float>(s.values.data() + book * s.entries * v_, s.entries, v_));
      }
    }
  }

  void Encode(const float* x, int head, uint8_t* record) const override {
    std::vector<float> rest(x, x + subvectors_ * v_);
    // A NaN is nearest to nothing: it is stored as the entry nearest to 0 there.
    for (float& value : rest) value = std::isfinite(value) ? value : 0;
    for (const Stage& stage : stages_) {
      for (int64_t s = 0; s < subvectors_; ++s) {
        const int64_t book = head * subvectors_ + s;
        int32_t code = 0;
        stage.nearest[static_cast<size_t>(book)].Find({rest.data() + s * v_, 1, v_}, {}, &code, nullptr);
        const float* entry = stage.values.data() + (book * stage.entries + code) * v_;
        for (int64_t d = 0; d < v_; ++d) rest[static_cast<size_t>(s * v_ + d)] -= entry[d];
        *record++ = static_cast<uint8_t>(code);
        if (stage.code_bytes == 2) *record++ = static_cast<uint8_t>(code >> 8);
      }
    }
  }

  void Decode(const uint8_t* record, int head, int64_t stride, float* out) const override {
    bool first = true;
    for (const Stage& stage : stages_) {
      const float* book = stage.values.data() + head * subvectors_ * stage.entries * v_;
      for (int64_t s = 0; s < subvectors_; ++s, book += stage.entries * v_) {
        int64_t code = *record++;
        if (stage.code_bytes == 2) code |= *record++ << 8;
        const float* entry = book + code * v_;
        float* to = out + s * v_ * stride;
        for (int64_t d = 0; d < v_; ++d) to[d * stride] = first ? entry[d] : to[d * stride] + entry[d];
      }
      first = false;
    }
  }

  int64_t fixed_bytes() const override {
    int64_t bytes = 0;
    for (const Stage& stage : stages_) bytes += 2 * static_cast<int64_t>(stage.values.size());
    return bytes;
  }

 private:
  struct Stage {
    int64_t entries = 0;
    int code_bytes = 1;
    std::vector<float> values;  // [kv_heads, subvectors, entries, v]
    std::vector<NearestEntry> nearest;
  };

  static int64_t RecordBytes(const Format& f, int head_dim) {
    int64_t bytes = 0;
    for (const int entries : f.entries) bytes += head_dim / f.subvector * (entries > 256 ? 2 : 1);
    return bytes;
  }

  int64_t v_;
  int64_t subvectors_;
  std::vector<Stage> stages_;
};

}  // namespace

std::unique_ptr<KvCodec> MakeKvCodec(const KvSide& side, int kv_heads, int head_dim) {
  switch (side.format.kind) {
    case FormatKind::kDense:
      return std::make_unique<DenseCodec>(side.format.dtype, head_dim);
    case FormatKind::kInt:
      VQLLM_CHECK(side.format.bits == 4 || side.format.bits == 8);
      return std::make_unique<IntCodec>(side.format, head_dim);
    case FormatKind::kTable:
      return std::make_unique<TableCodec>(side, kv_heads, head_dim);
    default:
      VQLLM_CHECK(false, "KV format {}", side.format.name);
  }
}

}  // namespace vqllm::cpu
