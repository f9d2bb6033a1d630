#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "runtime/ptx/instruction.h"
#include "runtime/ptx/select.h"
#include "runtime/ptx/warp.h"

/// What the files exec_*.cc share. A handler is a loop over 32 lanes that the compiler turns into vector
/// instructions: it computes all lanes into a buffer and stores those of the mask. Files with such loops are
/// compiled with -O3 for AVX2, without contraction of a * b + c, and without strict aliasing: registers hold
/// bits, and each handler reads them as its own type.

// Before a loop: no iteration depends on another. clang checks at run time instead.
#if defined(__clang__)
#define VQLLM_LANES_INDEPENDENT
#else
#define VQLLM_LANES_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace vqllm::ptx {

template <typename T>
inline void StoreLanes(T* dest, const T* values, uint32_t mask) {
  if (mask == kAllLanes) {
    for (int i = 0; i < kWarpSize; ++i) dest[i] = values[i];
  } else {
    for (int i = 0; i < kWarpSize; ++i) dest[i] = (mask >> i & 1) ? values[i] : dest[i];
  }
}

template <typename D, auto F, typename... S, size_t... J>
inline void ApplyLanes(Warp& warp, const Instruction& instruction, std::index_sequence<J...>) {
  D* const dest = warp.Write<D>(instruction.dest[0]);
  [&](const S*... sources) {
    if (warp.mask == kAllLanes) {
      // A place is shared only by registers of one width: lane i depends on lane i alone.
      VQLLM_LANES_INDEPENDENT
      for (int i = 0; i < kWarpSize; ++i) dest[i] = F(sources[i]...);
      return;
    }
    alignas(64) D values[kWarpSize];
    for (int i = 0; i < kWarpSize; ++i) values[i] = F(sources[i]...);
    StoreLanes(dest, values, warp.mask);
  }(warp.Read<S>(instruction.source[J])...);
}

/// dest = F(sources...) for every lane: `F` is a captureless lambda, S the types of its arguments.
template <typename D, auto F, typename... S>
void Lanes(Warp& warp, const Instruction& instruction) {
  ApplyLanes<D, F, S...>(warp, instruction, std::index_sequence_for<S...>{});
}

/// The predicate of one bit a lane from a buffer of truth values.
inline uint32_t MaskOf(const uint32_t* truth) {
  uint32_t mask = 0;
  for (int i = 0; i < kWarpSize; ++i) mask |= (truth[i] & 1u) << i;
  return mask;
}

template <typename Body>
inline void ForLanes(uint32_t mask, Body&& body) {
  for (; mask != 0; mask &= mask - 1) body(std::countr_zero(mask));
}

/// The lowest bit of the mask: the lane that speaks for a warp.
inline int FirstLane(uint32_t mask) { return std::countr_zero(mask | 0x80000000u); }

/// Value of lane `lane` of a register of `bytes`.
inline uint64_t LaneBits(const Warp& warp, Place place, int bytes, int lane) {
  switch (bytes) {
    case 2:
      return warp.Read<uint16_t>(place)[lane];
    case 4:
      return warp.Read<uint32_t>(place)[lane];
    case 8:
      return warp.Read<uint64_t>(place)[lane];
    default:
      return warp.Predicate(place) >> lane & 1;
  }
}
inline void SetLaneBits(const Warp& warp, Place place, int bytes, int lane, uint64_t bits) {
  switch (bytes) {
    case 2:
      warp.Write<uint16_t>(place)[lane] = static_cast<uint16_t>(bits);
      return;
    case 4:
      warp.Write<uint32_t>(place)[lane] = static_cast<uint32_t>(bits);
      return;
    default:
      warp.Write<uint64_t>(place)[lane] = bits;
  }
}

inline uint64_t SignExtend(uint64_t bits, int bytes) {
  const int shift = 64 - 8 * bytes;
  return static_cast<uint64_t>(static_cast<int64_t>(bits << shift) >> shift);
}

}  // namespace vqllm::ptx
