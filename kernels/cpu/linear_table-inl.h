// How codes become entries in registers: shared by the kernels that multiply and those that write tiles;
// included once a target (no pragma once) between the toggles of Highway, after linear-inl.h.
#if defined(VQLLM_KERNELS_CPU_LINEAR_TABLE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VQLLM_KERNELS_CPU_LINEAR_TABLE_INL_H_
#undef VQLLM_KERNELS_CPU_LINEAR_TABLE_INL_H_
#else
#define VQLLM_KERNELS_CPU_LINEAR_TABLE_INL_H_
#endif

#include <bit>
#include <type_traits>

#include "kernels/cpu/linear_table_kernels.h"
// Before what uses its vectors.
#include "kernels/cpu/linear-inl.h"

VQLLM_BEFORE_NAMESPACE();
namespace vqllm::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

// A lambda that is inlined late leaves what it captures in memory.
#undef VQLLM_INLINE_LAMBDA
#define VQLLM_INLINE_LAMBDA __attribute__((always_inline))

/// body(i) for i in [0, kCount), each i a constant of its own. A loop, even one that is unrolled later,
/// leaves arrays of vectors in memory: every sum would be stored at every step.
template <int kCount, int kIndex = 0, typename Body>
HWY_INLINE void Unrolled(const Body& body) {
  if constexpr (kIndex < kCount) {
    body(std::integral_constant<int, kIndex>());
    Unrolled<kCount, kIndex + 1>(body);
  }
}

/// kWidth values, in one vector or in several.
template <int kWidth>
struct Entry {
  static constexpr int kStep = kWidth < kLanes ? kWidth : kLanes;
  static constexpr int kVectors = kWidth / kStep;
  using D = hn::CappedTag<float, kStep>;
  using V = hn::Vec<D>;
};

/// Byte offset of an entry of 2^shift bytes: code `row` of the 8 (or 4) in a word, by one rotation and one
/// mask.
template <int kCodeBits, int kShift>
HWY_INLINE size_t EntryOffset(uint64_t word, int row) {
  constexpr uint64_t kMask = ((uint64_t{1} << kCodeBits) - 1) << kShift;
  // A rotation into another register (rorx) needs no copy of the word before it, as a shift does.
  return static_cast<size_t>(std::rotr(word, kCodeBits * row - kShift) & kMask);
}

template <TableKind kKind, int kWidth>
struct Decoder {
  using E = Entry<kWidth>;
  static constexpr int kCodeBits = kKind == TableKind::kCode8 ? 8 : 16;
  static constexpr int kValueBytes = kKind == TableKind::kCode16Half ? 2 : 4;
  static constexpr int kShift = (kWidth == 4 ? 2 : kWidth == 8 ? 3 : 4) + (kValueBytes == 2 ? 1 : 2);

  const uint8_t* book;

  HWY_INLINE Decoder(const TableView& w, int64_t stage, int64_t book_index)
      : book(static_cast<const uint8_t*>(w.books) +
             (w.stage_begin[stage] + book_index * w.entries[stage] * kWidth) * kValueBytes) {}

  HWY_INLINE typename E::V Get(const uint64_t* words, int row, int v) const {
    constexpr int kPerWord = 64 / kCodeBits;
    const uint8_t* entry = book + EntryOffset<kCodeBits, kShift>(words[row / kPerWord], row % kPerWord) +
                           v * E::kStep * kValueBytes;
    const typename E::D d;
    if constexpr (kValueBytes == 4) {
      return hn::LoadU(d, reinterpret_cast<const float*>(entry));
    } else {
      const hn::Rebind<uint16_t, typename E::D> bits;
      const hn::Rebind<hwy::float16_t, typename E::D> half;
      return hn::PromoteTo(d, hn::BitCast(half, hn::LoadU(bits, reinterpret_cast<const uint16_t*>(entry))));
    }
  }
};

/// E8P: absolute values by the high byte, then signs and a shift of a quarter by the low byte.
template <>
struct Decoder<TableKind::kLattice, 8> {
  using E = Entry<8>;
  const float* table;
  float scale;

  HWY_INLINE Decoder(const TableView& w, int64_t stage, int64_t)
      : table(w.lattice), scale(w.stage_scales[stage]) {}

  HWY_INLINE typename E::V Get(const uint64_t* words, int row, int v) const {
    const typename E::D d;
    const uint64_t word = words[row / 4];
    const size_t magnitude = static_cast<size_t>(word >> (16 * (row % 4) + 8) & 255);
    const size_t signs = static_cast<size_t>(word >> (16 * (row % 4)) & 255);
    const auto value = hn::Xor(hn::LoadU(d, table + 8 * magnitude + v * E::kStep),
                               hn::LoadU(d, table + 2048 + 8 * signs + v * E::kStep));
    return hn::Mul(hn::Add(value, hn::Set(d, table[4096 + signs])), hn::Set(d, scale));
  }
};

/// Calls body.template operator()<kind, width>() for the kind and width of a view.
template <typename Body>
HWY_INLINE void ByKindAndWidth(const TableView& w, const Body& body) {
  const auto by_width = [&]<TableKind kKind>() {
    switch (w.width) {
      case 4:
        return body.template operator()<kKind, 4>();
      case 8:
        return body.template operator()<kKind, 8>();
      default:
        return body.template operator()<kKind, 16>();
    }
  };
  switch (w.kind) {
    case TableKind::kCode8:
      return by_width.template operator()<TableKind::kCode8>();
    case TableKind::kCode16:
      return by_width.template operator()<TableKind::kCode16>();
    case TableKind::kCode16Half:
      return by_width.template operator()<TableKind::kCode16Half>();
    case TableKind::kLattice:
      return body.template operator()<TableKind::kLattice, 8>();
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace vqllm::cpu
VQLLM_AFTER_NAMESPACE();

#endif  // include guard
