#include "kernels/cpu/attention_table.h"

#include <algorithm>
#include <cstring>

#include "vq/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_table.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace vqllm::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
// The kernels need vectors of four floats; without them codes are decoded one by one.
int64_t DecodedChannels() { return 0; }
void BuildLookup(const TableLayout& layout, const QueryQuad& quad, float* tables) {
  const int64_t channels = PaddedChannels(layout.subvectors * layout.subvector);
  for (const TableStage& stage : layout.stages) {
    for (int64_t s = 0; s < layout.subvectors; ++s) {
      for (int64_t e = 0; e < stage.entries; ++e) {
        for (int h = 0; h < kQuad; ++h) {
          float sum = 0;
          for (int64_t d = 0; d < layout.subvector; ++d) {
            sum += quad.q[h * channels + s * layout.subvector + d] *
                   stage.columns[(s * layout.subvector + d) * stage.padded + e];
          }
          *tables++ = sum;
        }
      }
    }
  }
}
void LookupScores(const TableLayout& layout, const float* tables, const uint8_t* const* rows, int64_t n,
                  float* scores) {
  std::fill_n(scores, n * kQuad, 0.0f);
  for (const TableStage& stage : layout.stages) {
    for (int64_t s = 0; s < layout.subvectors; ++s, tables += stage.entries * kQuad) {
      for (int64_t t = 0; t < n; ++t) {
        const uint8_t* code = rows[t] + stage.offset + s * stage.code_bytes;
        const int64_t e = stage.code_bytes == 1 ? code[0] : code[0] | code[1] << 8;
        for (int h = 0; h < kQuad; ++h) scores[t * kQuad + h] += tables[e * kQuad + h];
      }
    }
  }
}
void TableDecode(const TableLayout&, const uint8_t* const*, int64_t, int64_t, float*) { VQLLM_CHECK(false); }
void TableValues(const TableLayout&, const float*, int, const uint8_t* const*, int64_t, float*) {
  VQLLM_CHECK(false);
}
#else
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, kRowPad>;
using F4 = hn::FixedTag<float, kQuad>;
using V = hn::Vec<F>;
using V4 = hn::Vec<F4>;
using U16 = hn::Repartition<uint16_t, F>;  // halves of two vectors of floats
constexpr int64_t kLanes = hn::MaxLanes(F());
constexpr int64_t kPair = 2 * kLanes;  // channels that are decoded at a time

// Tables of this many subvectors are read together: 8 x 256 entries x 16 bytes are 32 KiB of L1.
constexpr int64_t kTogether = 8;

int64_t DecodedChannels() { return kPair; }

void BuildLookup(const TableLayout& layout, const QueryQuad& quad, float* tables) {
  const F f;
  const int64_t v = layout.subvector;
  const int64_t channels = PaddedChannels(layout.subvectors * v);
  for (const TableStage& stage : layout.stages) {
    for (int64_t s = 0; s < layout.subvectors; ++s, tables += stage.entries * kQuad) {
      const float* columns = stage.columns + s * v * stage.padded;
      const float* q = quad.q + s * v;
      for (int64_t e = 0; e < stage.entries; e += kLanes) {
        V sums[kQuad] = {hn::Zero(f), hn::Zero(f), hn::Zero(f), hn::Zero(f)};
        for (int64_t d = 0; d < v; ++d) {
          const V entry = hn::LoadU(f, columns + d * stage.padded + e);
          for (int h = 0; h < kQuad; ++h)
            sums[h] = hn::MulAdd(hn::Set(f, q[h * channels + d]), entry, sums[h]);
        }
        if (e + kLanes <= stage.entries) {
          hn::StoreInterleaved4(sums[0], sums[1], sums[2], sums[3], f, tables + e * kQuad);
        } else {
          float last[kLanes * kQuad];
          hn::StoreInterleaved4(sums[0], sums[1], sums[2], sums[3], f, last);
          std::copy_n(last, (stage.entries - e) * kQuad, tables + e * kQuad);
        }
      }
    }
  }
}

/// Adds the entries of kCount subvectors of one-byte codes. With kEntries known the tables lie at fixed
/// distances, so that a code costs its own load, a shift and an add from memory.
template <int kCount, int kEntries>
HWY_INLINE void AddLookups(const float* tables, int64_t entries, const uint8_t* const* rows, int64_t at,
                           int64_t n, bool first, int64_t prefetch, float* scores) {
  const F4 f4;
  const int64_t table = (kEntries > 0 ? kEntries : entries) * kQuad;
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t i = 0; i < prefetch; i += 64) hwy::Prefetch(rows[t + kRowsAhead] + i);
    const uint8_t* codes = rows[t] + at;
    V4 even = first ? hn::Zero(f4) : hn::LoadU(f4, scores + t * kQuad);
    V4 odd = hn::Zero(f4);
    for (int i = 0; i < kCount; ++i) {
      V4& sum = i % 2 == 0 ? even : odd;
      sum = hn::Add(sum, hn::LoadU(f4, tables + i * table + size_t{codes[i]} * kQuad));
    }
    hn::StoreU(hn::Add(even, odd), f4, scores + t * kQuad);
  }
}

void LookupScores(const TableLayout& layout, const float* tables, const uint8_t* const* rows, int64_t n,
                  float* scores) {
  const F4 f4;
  bool first = true;
  int64_t prefetch = layout.bytes;
  for (const TableStage& stage : layout.stages) {
    for (int64_t s = 0; s < layout.subvectors;) {
      if (stage.code_bytes == 2) {
        for (int64_t t = 0; t < n; ++t) {
          const uint8_t* code = rows[t] + stage.offset + 2 * s;
          const V4 entry = hn::LoadU(f4, tables + (code[0] | code[1] << 8) * kQuad);
          hn::StoreU(first ? entry : hn::Add(hn::LoadU(f4, scores + t * kQuad), entry), f4,
                     scores + t * kQuad);
        }
        s += 1;
        tables += stage.entries * kQuad;
      } else if (s + kTogether <= layout.subvectors) {
        const auto add = stage.entries == 256 ? AddLookups<kTogether, 256> : AddLookups<kTogether, 0>;
        add(tables, stage.entries, rows, stage.offset + s, n, first, prefetch, scores);
        s += kTogether;
        tables += kTogether * stage.entries * kQuad;
      } else {
        AddLookups<1, 0>(tables, stage.entries, rows, stage.offset + s, n, first, prefetch, scores);
        s += 1;
        tables += stage.entries * kQuad;
      }
      first = false;
      prefetch = 0;
    }
  }
}

/// Halves of kLanes channels from channel `from` on, of entries of at least 8.
template <int v>
HWY_INLINE hn::Vec<hn::Half<U16> > JoinEntries(const uint16_t* books, int64_t entries, const uint8_t* codes,
                                               int64_t from) {
  const hn::Half<U16> u16;
  const auto address = [&](int64_t c) HWY_ATTR {
    const int64_t s = c / v;
    return books + (s * entries + codes[s]) * v + c % v;
  };
  if constexpr (kLanes == 16) {
    const hn::FixedTag<uint16_t, 8> eight;
    return hn::Combine(u16, hn::LoadU(eight, address(from + 8)), hn::LoadU(eight, address(from)));
  } else {
    return hn::LoadU(u16, address(from));
  }
}

/// Entries of kPair / v consecutive subvectors as halves.
template <int v>
HWY_INLINE hn::Vec<U16> LoadEntries(const uint16_t* books, int64_t entries, const uint8_t* codes) {
  const U16 u16;
  if constexpr (v == 2) {
    const hn::RebindToSigned<F> index;
    const hn::RebindToUnsigned<F> pairs;
    const auto code = hn::PromoteTo(index, hn::LoadU(hn::Rebind<uint8_t, F>(), codes));
    const auto base = hn::Mul(hn::Iota(index, 0), hn::Set(index, static_cast<int32_t>(entries)));
    return hn::BitCast(u16,
                       hn::GatherIndex(pairs, reinterpret_cast<const uint32_t*>(books), hn::Add(code, base)));
  } else if constexpr (v == 4) {
    const hn::Repartition<uint64_t, F> quads;
    const hn::RebindToSigned<decltype(quads)> index;
    const hn::Rebind<int32_t, decltype(index)> narrow;
    const auto code = hn::PromoteTo(narrow, hn::LoadU(hn::Rebind<uint8_t, decltype(index)>(), codes));
    const auto base = hn::Mul(hn::Iota(narrow, 0), hn::Set(narrow, static_cast<int32_t>(entries)));
    return hn::BitCast(u16, hn::GatherIndex(quads, reinterpret_cast<const uint64_t*>(books),
                                            hn::PromoteTo(index, hn::Add(code, base))));
  } else {
    return hn::LoadU(u16, books + codes[0] * v);
  }
}

/// Channels [c, c + kPair) of a row; c is a multiple of kPair.
template <int v>
HWY_INLINE void LoadChannels(const TableLayout& layout, const uint8_t* row, int64_t c, V& low, V& high) {
  const F f;
  const hn::Half<U16> half;
  const hn::Rebind<hwy::float16_t, F> f16;
  // A vector narrower than an entry begins inside one.
  const int64_t s = c / v;
  const int64_t inside = c % v;
  const auto load = [&](const TableStage& stage, V& a, V& b) HWY_ATTR {
    const uint16_t* books = stage.rows + s * stage.entries * v + inside;
    const uint8_t* codes = row + stage.offset + s;
    if constexpr (v >= 8 && kLanes >= 8) {
      // Two halves apart: joining them only to part them again costs two shuffles.
      a = hn::PromoteTo(f, hn::BitCast(f16, JoinEntries<v>(books, stage.entries, codes, 0)));
      b = hn::PromoteTo(f, hn::BitCast(f16, JoinEntries<v>(books, stage.entries, codes, kLanes)));
    } else {
      const hn::Vec<U16> halves = LoadEntries<v>(books, stage.entries, codes);
      a = hn::PromoteTo(f, hn::BitCast(f16, hn::LowerHalf(half, halves)));
      b = hn::PromoteTo(f, hn::BitCast(f16, hn::UpperHalf(half, halves)));
    }
  };
  load(layout.stages[0], low, high);
  for (size_t i = 1; i < layout.stages.size(); ++i) {
    V a = hn::Zero(f), b = a;
    load(layout.stages[i], a, b);
    low = hn::Add(low, a);
    high = hn::Add(high, b);
  }
}

template <int v>
void Decode(const TableLayout& layout, const uint8_t* const* rows, int64_t n, int64_t stride, float* out) {
  const F f;
  for (int64_t c = 0; c < layout.subvectors * v; c += kPair) {
    for (int64_t t = 0; t < n; ++t) {
      V low = hn::Zero(f), high = low;
      LoadChannels<v>(layout, rows[t], c, low, high);
      hn::StoreU(low, f, out + t * stride + c);
      hn::StoreU(high, f, out + t * stride + c + kLanes);
    }
  }
}

template <int v, int kHeads>
void Values(const TableLayout& layout, const float* weights, const uint8_t* const* rows, int64_t n,
            float* out) {
  const F f;
  const int64_t channels = layout.subvectors * v;
  // Channels are the outer loop: the entries of a pair of vectors, 16 KiB of 256-entry codebooks, stay in L1.
  for (int64_t c = 0; c < channels; c += kPair) {
    V low[kHeads];
    V high[kHeads];
    for (int h = 0; h < kHeads; ++h) {
      low[h] = hn::LoadU(f, out + h * channels + c);
      high[h] = hn::LoadU(f, out + h * channels + c + kLanes);
    }
    for (int64_t t = 0; t < n; ++t) {
      if (c == 0) {
        for (int64_t i = 0; i < layout.bytes; i += 64) hwy::Prefetch(rows[t + kRowsAhead] + i);
      }
      V a = hn::Zero(f), b = a;
      LoadChannels<v>(layout, rows[t], c, a, b);
      for (int h = 0; h < kHeads; ++h) {
        const V w = hn::Set(f, weights[t * kQuad + h]);
        low[h] = hn::MulAdd(w, a, low[h]);
        high[h] = hn::MulAdd(w, b, high[h]);
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      hn::StoreU(low[h], f, out + h * channels + c);
      hn::StoreU(high[h], f, out + h * channels + c + kLanes);
    }
  }
}

void TableDecode(const TableLayout& layout, const uint8_t* const* rows, int64_t n, int64_t stride,
                 float* out) {
  switch (layout.subvector) {
    case 2:
      return Decode<2>(layout, rows, n, stride, out);
    case 4:
      return Decode<4>(layout, rows, n, stride, out);
    case 8:
      return Decode<8>(layout, rows, n, stride, out);
    case 16:
      return Decode<16>(layout, rows, n, stride, out);
  }
  VQLLM_CHECK(false, "subvector {}", layout.subvector);
}

template <int v>
void ValuesOf(const TableLayout& layout, const float* weights, int heads, const uint8_t* const* rows,
              int64_t n, float* out) {
  if (heads == 1) return Values<v, 1>(layout, weights, rows, n, out);
  if (heads == 2) return Values<v, 2>(layout, weights, rows, n, out);
  Values<v, 4>(layout, weights, rows, n, out);
}

void TableValues(const TableLayout& layout, const float* weights, int heads, const uint8_t* const* rows,
                 int64_t n, float* out) {
  switch (layout.subvector) {
    case 2:
      return ValuesOf<2>(layout, weights, heads, rows, n, out);
    case 4:
      return ValuesOf<4>(layout, weights, heads, rows, n, out);
    case 8:
      return ValuesOf<8>(layout, weights, heads, rows, n, out);
    case 16:
      return ValuesOf<16>(layout, weights, heads, rows, n, out);
  }
  VQLLM_CHECK(false, "subvector {}", layout.subvector);
}
#endif  // HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace vqllm::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vqllm::cpu {

HWY_EXPORT(DecodedChannels);
HWY_EXPORT(BuildLookup);
HWY_EXPORT(LookupScores);
HWY_EXPORT(TableDecode);
HWY_EXPORT(TableValues);

int64_t LookupFloats(const TableLayout& layout) {
  int64_t floats = 0;
  for (const TableStage& stage : layout.stages) floats += layout.subvectors * stage.entries * kQuad;
  return floats;
}

void BuildLookup(const TableLayout& layout, const QueryQuad& quad, float* tables) {
  HWY_DYNAMIC_DISPATCH(BuildLookup)(layout, quad, tables);
}
void LookupScores(const TableLayout& layout, const float* tables, const uint8_t* const* rows, int64_t n,
                  float* scores) {
  HWY_DYNAMIC_DISPATCH(LookupScores)(layout, tables, rows, n, scores);
}

bool TableDecodable(const TableLayout& layout) {
  const int64_t v = layout.subvector;
  const int64_t pair = HWY_DYNAMIC_DISPATCH(DecodedChannels)();
  return pair > 0 && layout.subvectors * v % pair == 0 && (v == 2 || v == 4 || v == 8 || v == 16) &&
         std::all_of(layout.stages.begin(), layout.stages.end(),
                     [](const TableStage& stage) { return stage.code_bytes == 1; });
}

void TableDecode(const TableLayout& layout, const uint8_t* const* rows, int64_t n, int64_t stride,
                 float* out) {
  HWY_DYNAMIC_DISPATCH(TableDecode)(layout, rows, n, stride, out);
}
void TableValues(const TableLayout& layout, const float* weights, int heads, const uint8_t* const* rows,
                 int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(TableValues)(layout, weights, heads, rows, n, out);
}

}  // namespace vqllm::cpu
#endif  // HWY_ONCE
