// What kv_append must leave behind.
#include <algorithm>
#include <cmath>

#include "codegen/kv/proof_places.h"
#include "kernels/cpu/reference.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

/// A rotated key is wrong by two roundings of fp32 of the larger channel of its pair.
constexpr double kRotation = 0x1p-22;

/// Whether a record holds what x [head_dim] encodes to. x may be off by `slack` of its largest value.
bool IsEncoded(const KvSideLayout& layout, const cpu::KvSide& side, int head, const KvToken& token,
               const std::vector<float>& x, double slack) {
  const Format& f = layout.format;
  if (f.kind == FormatKind::kTable) {
    const size_t v = static_cast<size_t>(f.subvector);
    for (int unit = 0; unit < layout.units; ++unit) {
      std::vector<double> rest(x.begin() + unit * f.subvector, x.begin() + (unit + 1) * f.subvector);
      for (int stage = 0; stage < f.stages(); ++stage) {
        const auto s = static_cast<size_t>(stage);
        const size_t entries = static_cast<size_t>(f.entries[s]);
        const size_t code = token.codes[static_cast<size_t>(unit * f.stages()) + s];
        if (code >= entries) return false;
        const Half* book =
            side.codebooks[s].data() + static_cast<size_t>(head * layout.units + unit) * entries * v;
        const std::vector<double> distances = reference::Distances(rest, {book, entries * v});
        const double nearest = *std::min_element(distances.begin(), distances.end());
        // The kernel compares x . c - |c|^2 / 2 in fp32: v + 2 roundings of terms as large as |x|^2 + |c|^2.
        double size = 0;
        for (size_t d = 0; d < v; ++d) {
          size += rest[d] * rest[d] + std::pow(float{book[code * v + d]}, 2);
          rest[d] -= book[code * v + d];
        }
        if (distances[code] > nearest + size * (static_cast<double>(v) + 4) * (0x1p-22 + 4 * slack))
          return false;
      }
    }
    return true;
  }
  const std::vector<float> decoded = DecodeKvToken(layout, side, head, token);
  for (size_t c = 0; c < x.size(); ++c) {
    double allowed = slack * std::fabs(x[c]) + 0x1p-25;
    if (f.kind == FormatKind::kDense) {
      allowed += std::fabs(x[c]) * (f.dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11);
    } else {
      // Half a step; the ends of the range move with the rounding of scale and offset to fp16.
      const size_t group = f.scale == ScaleKind::kGroup ? static_cast<size_t>(f.group) : x.size();
      const double scale = std::fabs(HalfBitsToFloat(token.scales[c / group]));
      double largest = 0;
      for (size_t i = c / group * group; i < std::min(x.size(), (c / group + 1) * group); ++i)
        largest = std::max<double>(largest, std::fabs(x[i]));
      allowed += scale / 2 + largest * (0x1p-10 + 2 * slack);
    }
    if (!(std::fabs(decoded[c] - x[c]) <= allowed)) return false;
  }
  return true;
}

}  // namespace

KvAppendResult CheckKvAppend(const KvPlan& plan, const KvProofCase& proof, const std::vector<uint32_t>& keys,
                             const std::vector<uint32_t>& values, const std::vector<uint32_t>& exact) {
  const KvShape& shape = plan.shape;
  const cpu::RopeTable rope = internal::RopeTableOf(shape, proof.rope);
  const double slack = shape.rope_dim > 0 && !shape.keys_before_rope ? kRotation : 0;
  KvAppendResult result;
  const auto check = [&](bool good, const char* what, size_t row, int head, int position) {
    ++result.checked;
    if (good) return;
    ++result.wrong;
    if (result.message.empty())
      result.message = fmt::format("{} of row {}, head {}, position {}", what, row, head, position);
  };
  for (size_t row = 0; row < proof.sequences.size(); ++row) {
    const KvProofRow& sequence = proof.sequences[row];
    for (int t = 0; t < sequence.count; ++t) {
      const int position = sequence.length - sequence.count + t;
      if (position < 0) continue;
      for (int head = 0; head < shape.kv_heads; ++head) {
        for (const bool is_key : {true, false}) {
          const KvSideLayout& layout = is_key ? plan.key.layout : plan.value.layout;
          const std::vector<uint16_t>& from = is_key ? proof.k : proof.v;
          const int64_t at = ((proof.rows[4 * row] + t) * shape.kv_heads + head) * shape.head_dim;
          std::vector<float> x;
          for (int c = 0; c < shape.head_dim; ++c) {
            const uint16_t bits = from[static_cast<size_t>(at + c)];
            x.push_back(plan.activation == DType::kBF16 ? BFloat16BitsToFloat(bits) : HalfBitsToFloat(bits));
          }
          if (is_key && shape.rope_dim > 0 && !shape.keys_before_rope)
            reference::Rotate(rope, position, x.data());
          const std::vector<uint32_t>& words = is_key ? keys : values;
          const size_t record = internal::RecordAt(plan, proof, layout, row, head, position);
          const KvToken token = UnpackKvToken(
              layout, std::span(words).subspan(record, static_cast<size_t>(layout.RecordWords())));
          const cpu::KvSide& side = is_key ? proof.key : proof.value;
          check(IsEncoded(layout, side, head, token, x, is_key ? slack : 0), is_key ? "key" : "value", row,
                head, position);
          if (!internal::HasCopy(shape, sequence.length, position)) continue;
          const size_t copy = internal::CopyAt(plan, proof, row, head, position) +
                              static_cast<size_t>(is_key ? 0 : shape.head_dim);
          bool good = true;
          for (size_t c = 0; c < x.size(); ++c) {
            const uint32_t word = exact[(copy + c) / 2];
            const float kept =
                HalfBitsToFloat(static_cast<uint16_t>((copy + c) % 2 == 0 ? word : word >> 16));
            good = good && std::fabs(kept - x[c]) <= std::fabs(x[c]) * (0x1p-11 + slack) + 0x1p-25;
          }
          check(good, is_key ? "exact key" : "exact value", row, head, position);
        }
      }
    }
  }
  return result;
}

}  // namespace vqllm
