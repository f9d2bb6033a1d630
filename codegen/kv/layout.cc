#include "codegen/kv/layout.h"

#include <algorithm>

#include "codegen/layout.h"
#include "vq/base/check.h"
#include "vq/base/math.h"

namespace vqllm {
namespace {

// Channels that a lane decodes of a token: one 16-byte load of fp16; sixteen lanes share a head of 128.
constexpr int kSliceChannels = 8;

// Positions: 2^22 tokens keep every index within a page table and every position in an int.
constexpr int kMaxContext = 1 << 22;
constexpr int kMaxHeads = 1024;

void PutBits(std::span<uint32_t> words, int at, int width, uint32_t value) {
  for (int bit = 0; bit < width; ++bit) {
    if (value >> bit & 1) words[static_cast<size_t>((at + bit) / 32)] |= uint32_t{1} << (at + bit) % 32;
  }
}
uint32_t GetBits(std::span<const uint32_t> words, int at, int width) {
  uint32_t value = 0;
  for (int bit = 0; bit < width; ++bit)
    value |= (words[static_cast<size_t>((at + bit) / 32)] >> (at + bit) % 32 & 1) << bit;
  return value;
}

/// Calls visit(index into KvToken::codes, first bit, width) for every code of a record.
template <typename Visit>
void ForEachCode(const KvSideLayout& layout, Visit visit) {
  const Format& f = layout.format;
  for (int slice = 0; slice < layout.slices; ++slice) {
    for (int u = 0; u < layout.slice_units; ++u) {
      const int unit = u * layout.slices + slice;
      if (unit >= layout.units) continue;
      const int at = (slice * layout.slice_units + u) * layout.unit_bits;
      if (f.kind == FormatKind::kTable) {
        int bit = at;
        for (int stage = 0; stage < f.stages(); ++stage) {
          visit(static_cast<size_t>(unit * f.stages() + stage), bit, f.CodeBits(stage));
          bit += f.CodeBits(stage);
        }
        continue;
      }
      const int width = f.kind == FormatKind::kInt ? f.bits : 16;
      for (int i = 0; i < layout.unit_channels; ++i) {
        const int channel = unit * layout.unit_channels + i;
        if (channel >= layout.head_dim) break;
        // Nibbles in the order 0 2 4 6 1 3 5 7: one shift and one mask give a pair of neighbours in two
        // halves.
        const int place = width == 4 ? i / 2 + i % 2 * 4 : i;
        visit(static_cast<size_t>(channel), at + place * width, width);
      }
    }
  }
}

size_t Codes(const KvSideLayout& layout) {
  return static_cast<size_t>(layout.format.kind == FormatKind::kTable ? layout.units * layout.format.stages()
                                                                      : layout.head_dim);
}

void CheckRange(const char* field, int found, int low, int high) {
  if (found < low || found > high) Fail("KV cache: {}: found {}, allowed: {} to {}", field, found, low, high);
}

}  // namespace

KvSideLayout MakeKvSideLayout(const Format& f, int head_dim) {
  const bool table = f.kind == FormatKind::kTable && f.scope.kind == ScopeKind::kHeadChannel &&
                     f.axis == Axis::kIn && f.scale == ScaleKind::kNone;
  const bool integers = f.kind == FormatKind::kInt && (f.bits == 4 || f.bits == 8);
  const bool dense = f.kind == FormatKind::kDense && f.dtype != DType::kF32;
  if (!(table || integers || dense) || f.rotation || f.permutation || f.input_affine) {
    Fail("KV format {} on a GPU: allowed: fp16, bf16, int8, int4, or VQ with scope head-channel and no scale",
         f.name);
  }
  if (table && head_dim % f.subvector != 0)
    Fail("KV format {}: subvector {} does not divide head_dim {}", f.name, f.subvector, head_dim);
  KvSideLayout layout;
  layout.format = f;
  layout.head_dim = head_dim;
  if (table) {
    layout.unit_channels = f.subvector;
    for (int stage = 0; stage < f.stages(); ++stage) layout.unit_bits += f.CodeBits(stage);
    layout.entry_words = EntryWords(f.subvector);
  } else if (integers) {
    layout.unit_bits = layout.unit_channels * f.bits;
    const int group = f.scale == ScaleKind::kGroup ? std::min(f.group, head_dim) : head_dim;
    layout.groups = CeilDiv(head_dim, group);
    layout.number_words = f.symmetric ? CeilDiv(layout.groups, 2) : layout.groups;
  } else {
    while (head_dim % layout.unit_channels != 0) layout.unit_channels /= 2;
    layout.unit_bits = 16 * layout.unit_channels;
  }
  layout.units = CeilDiv(head_dim, layout.unit_channels);
  // A warp's lanes are enough for the slices of a token.
  layout.slice_units =
      std::min(layout.units, std::max(kSliceChannels / layout.unit_channels, CeilDiv(layout.units, 32)));
  layout.slice_units = std::max(1, layout.slice_units);
  layout.slices = CeilDiv(layout.units, layout.slice_units);
  layout.code_words = CeilDiv(layout.slices * layout.SliceBits(), 32);
  return layout;
}

void PackKvToken(const KvSideLayout& layout, const KvToken& token, std::span<uint32_t> record) {
  VQLLM_CHECK(token.codes.size() == Codes(layout) &&
              static_cast<int64_t>(record.size()) == layout.RecordWords());
  std::fill(record.begin(), record.end(), 0);
  ForEachCode(layout, [&](size_t i, int at, int width) { PutBits(record, at, width, token.codes[i]); });
  const bool symmetric = layout.format.symmetric;
  for (int g = 0; g < layout.groups; ++g) {
    const int at = 32 * layout.code_words + g * (symmetric ? 16 : 32);
    PutBits(record, at, 16, token.scales[static_cast<size_t>(g)]);
    if (!symmetric) PutBits(record, at + 16, 16, token.offsets[static_cast<size_t>(g)]);
  }
}

KvToken UnpackKvToken(const KvSideLayout& layout, std::span<const uint32_t> record) {
  VQLLM_CHECK(static_cast<int64_t>(record.size()) == layout.RecordWords());
  KvToken token;
  token.codes.resize(Codes(layout));
  ForEachCode(layout, [&](size_t i, int at, int width) { token.codes[i] = GetBits(record, at, width); });
  const bool symmetric = layout.format.symmetric;
  for (int g = 0; g < layout.groups; ++g) {
    const int at = 32 * layout.code_words + g * (symmetric ? 16 : 32);
    token.scales.push_back(static_cast<uint16_t>(GetBits(record, at, 16)));
    if (!symmetric) token.offsets.push_back(static_cast<uint16_t>(GetBits(record, at + 16, 16)));
  }
  return token;
}

KvToken FromCpuRecord(const KvSideLayout& layout, const uint8_t* record) {
  const Format& f = layout.format;
  const int d = layout.head_dim;
  const auto two = [&](int at) { return static_cast<uint16_t>(record[at] | record[at + 1] << 8); };
  KvToken token;
  token.codes.resize(Codes(layout));
  int at = 0;
  if (f.kind == FormatKind::kTable) {
    for (int stage = 0; stage < f.stages(); ++stage) {
      const bool wide = f.entries[static_cast<size_t>(stage)] > 256;
      for (int unit = 0; unit < layout.units; ++unit, at += wide ? 2 : 1)
        token.codes[static_cast<size_t>(unit * f.stages() + stage)] = wide ? two(at) : record[at];
    }
    return token;
  }
  for (int c = 0; c < d; ++c) {
    const int byte = f.bits == 4 ? c % (d / 2) : c;
    token.codes[static_cast<size_t>(c)] = f.kind == FormatKind::kDense ? two(2 * c)
                                          : f.bits == 8                ? record[byte]
                                                        : record[byte] >> (c < d / 2 ? 0 : 4) & 15;
  }
  at = CeilDiv(d * f.bits, 16) * 2;
  for (int g = 0; g < layout.groups; ++g) {
    token.scales.push_back(two(at));
    if (!f.symmetric) token.offsets.push_back(two(at + 2));
    at += f.symmetric ? 2 : 4;
  }
  return token;
}

std::vector<float> DecodeKvToken(const KvSideLayout& layout, const cpu::KvSide& side, int head,
                                 const KvToken& token) {
  const Format& f = layout.format;
  std::vector<float> out(static_cast<size_t>(layout.head_dim));
  for (int c = 0; c < layout.head_dim; ++c) {
    float& value = out[static_cast<size_t>(c)];
    if (f.kind == FormatKind::kTable) {
      const int unit = c / f.subvector;
      for (int stage = 0; stage < f.stages(); ++stage) {
        const auto s = static_cast<size_t>(stage);
        const int64_t entry = (int64_t{head} * layout.units + unit) * f.entries[s] +
                              token.codes[static_cast<size_t>(unit * f.stages()) + s];
        const float part = side.codebooks[s][static_cast<size_t>(entry * f.subvector + c % f.subvector)];
        value = stage == 0 ? part : value + part;
      }
    } else if (f.kind == FormatKind::kInt) {
      const int group = f.scale == ScaleKind::kGroup ? std::min(f.group, layout.head_dim) : layout.head_dim;
      const auto g = static_cast<size_t>(c / group);
      const float scale = HalfBitsToFloat(token.scales[g]);
      const float offset =
          f.symmetric ? -scale * static_cast<float>(1 << (f.bits - 1)) : HalfBitsToFloat(token.offsets[g]);
      value = scale * static_cast<float>(token.codes[static_cast<size_t>(c)]) + offset;
    } else {
      const auto bits = static_cast<uint16_t>(token.codes[static_cast<size_t>(c)]);
      value = f.dtype == DType::kBF16 ? BFloat16BitsToFloat(bits) : HalfBitsToFloat(bits);
    }
  }
  return out;
}

std::vector<uint32_t> PackKvCodebooks(const KvSideLayout& layout, const cpu::KvSide& side, int kv_heads) {
  const Format& f = layout.format;
  std::vector<uint32_t> words;
  if (f.kind != FormatKind::kTable) return words;
  for (int stage = 0; stage < f.stages(); ++stage) {
    const std::vector<Half>& books = side.codebooks[static_cast<size_t>(stage)];
    const int64_t entries = f.entries[static_cast<size_t>(stage)];
    VQLLM_CHECK(static_cast<int64_t>(books.size()) ==
                int64_t{kv_heads} * layout.units * entries * f.subvector);
    for (int head = 0; head < kv_heads; ++head) {
      for (int64_t entry = 0; entry < entries; ++entry) {
        for (int unit = 0; unit < layout.units; ++unit) {
          const int64_t from = ((int64_t{head} * layout.units + unit) * entries + entry) * f.subvector;
          const size_t at = words.size();
          words.resize(at + static_cast<size_t>(layout.entry_words));
          for (int i = 0; i < f.subvector; ++i)
            words[at + static_cast<size_t>(i / 2)] |=
                static_cast<uint32_t>(books[static_cast<size_t>(from + i)].bits) << 16 * (i % 2);
        }
      }
    }
  }
  return words;
}

void Validate(const KvShape& shape) {
  CheckRange("kv_heads", shape.kv_heads, 1, kMaxHeads);
  CheckRange("head_dim", shape.head_dim, 2, 256);
  if (shape.head_dim % 2 != 0) Fail("KV cache: head_dim: found {}, allowed: even numbers", shape.head_dim);
  if (shape.page_tokens < 16 || shape.page_tokens > 128 || (shape.page_tokens & (shape.page_tokens - 1)) != 0)
    Fail("KV cache: page_tokens: found {}, allowed: 16 32 64 128", shape.page_tokens);
  CheckRange("context", shape.context, 1, kMaxContext);
  CheckRange("sinks", shape.sinks, 0, 1024);
  CheckRange("window", shape.window, 0, 1 << 16);
  CheckRange("sliding_window", shape.sliding_window, 0, kMaxContext);
  CheckRange("chunk", shape.chunk, 1, 1 << 16);
  CheckRange("rope_dim", shape.rope_dim, 0, shape.head_dim);
  if (shape.rope_dim % 2 != 0) Fail("KV cache: rope_dim: found {}, allowed: even numbers", shape.rope_dim);
  MakeKvSideLayout(shape.key, shape.head_dim);
  MakeKvSideLayout(shape.value, shape.head_dim);
}

}  // namespace vqllm
