#include "runtime/ptx/access.h"
#include "runtime/ptx/convert.h"
#include "runtime/ptx/exec.h"
#include "runtime/ptx/half_math.h"
#include "runtime/ptx/tensor.h"

/// wmma: the ISA leaves the fragments open, so this is a layout of our own. A lane holds the 16 elements
/// along k of row lane % m of A or of column lane % n of B, and elements 8 lane .. 8 lane + 7 of the
/// row-major accumulator.
namespace vqllm::ptx {
namespace {

enum class Fragment : uint8_t { kA, kB, kAccumulator };

// Row and column of element e of a lane.
template <Fragment kFragment, int kM, int kN>
void PositionOf(int lane, int e, int* row, int* column) {
  if (kFragment == Fragment::kA) {
    *row = lane % kM;
    *column = e;
  } else if (kFragment == Fragment::kB) {
    *row = e;
    *column = lane % kN;
  } else {
    *row = (lane * 8 + e) / kN;
    *column = (lane * 8 + e) % kN;
  }
}

template <Fragment kFragment, int kM, int kN>
constexpr int Columns() {
  return kFragment == Fragment::kA ? 16 : kN;
}
template <Fragment kFragment, int kM, int kN>
constexpr int Rows() {
  return kFragment == Fragment::kB ? 16 : kM;
}

// One request a register element: two or four bytes a lane.
template <Fragment kFragment, int kM, int kN, bool kRow, bool kStore, bool kWide>
void Move(Warp& warp, const Instruction& instruction) {
  if (!RequireWholeWarp(warp)) return;
  constexpr int kBytes = kWide ? 4 : 2;
  constexpr int kElements = kFragment == Fragment::kAccumulator ? 8 : 16;
  uint64_t base[kWarpSize];
  LaneAddresses(warp, instruction.source[0], instruction.wide_address, instruction.offset, base);
  const uint32_t stride =
      instruction.source[1] != kNowhere
          ? warp.Read<uint32_t>(instruction.source[1])[0]
          : static_cast<uint32_t>(kRow ? Columns<kFragment, kM, kN>() : Rows<kFragment, kM, kN>());
  for (int e = 0; e < kElements; ++e) {
    Lanes32 lanes;
    for (int lane = 0; lane < kWarpSize; ++lane) {
      int row = 0;
      int column = 0;
      PositionOf<kFragment, kM, kN>(lane, e, &row, &column);
      const uint64_t index =
          kRow ? uint64_t{stride} * static_cast<uint64_t>(row) + static_cast<uint64_t>(column)
               : uint64_t{stride} * static_cast<uint64_t>(column) + static_cast<uint64_t>(row);
      lanes.address[lane] = base[lane] + index * kBytes;
    }
    SpaceMasks masks;
    if (instruction.space == Space::kShared) {
      masks.shared = kAllLanes;
    } else {
      masks = SplitGeneric(lanes, kAllLanes);
    }
    const AccessKind kind = kStore ? AccessKind::kStore : AccessKind::kLoad;
    uint32_t good = 0;
    if (masks.shared != 0) {
      good = ResolveShared(warp, lanes, masks.shared, kBytes);
      NoteShared(warp, lanes, good, kBytes, kind);
    }
    if (masks.global != 0) {
      int segment = -1;
      const uint32_t global = ResolveGlobal(warp, lanes, masks.global, kBytes, &segment);
      NoteGlobal(warp, lanes, global, kBytes, segment, kind);
      good |= global;
    }
    const Place place = instruction.list[kWide ? e : e / 2];
    const int shift = kWide ? 0 : 16 * (e % 2);
    const uint32_t mask = kWide ? ~0u : 0xffffu << shift;
    uint32_t* const registers = warp.Write<uint32_t>(place);
    ForLanes(good, [&](int lane) {
      if constexpr (kStore) {
        const uint32_t bits = registers[lane] >> shift;
        std::memcpy(lanes.host[lane], &bits, kBytes);
      } else {
        uint32_t bits = 0;
        std::memcpy(&bits, lanes.host[lane], kBytes);
        registers[lane] = (registers[lane] & ~mask) | bits << shift;
      }
    });
  }
}

template <int kM, int kN, bool kHalfAccumulator>
void Multiply(Warp& warp, const Instruction& instruction) {
  if (!RequireWholeWarp(warp)) return;
  constexpr int kAccumulators = kHalfAccumulator ? 4 : 8;
  const Place* const d = instruction.list;
  const Place* const a = d + kAccumulators;
  const Place* const b = a + 8;
  const Place* const c = b + 8;
  double matrix_a[kM][16];
  double matrix_b[16][kN];
  double sum[kM][kN];
  const auto half = [&](Place place, int lane, int e) {
    return static_cast<double>(
        HalfKind::Load(static_cast<uint16_t>(warp.Read<uint32_t>(place)[lane] >> (16 * (e % 2)))));
  };
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (int e = 0; e < 16; ++e) {
      matrix_a[lane % kM][e] = half(a[e / 2], lane, e);
      matrix_b[e][lane % kN] = half(b[e / 2], lane, e);
    }
    for (int e = 0; e < 8; ++e) {
      int row = 0;
      int column = 0;
      PositionOf<Fragment::kAccumulator, kM, kN>(lane, e, &row, &column);
      sum[row][column] = kHalfAccumulator
                             ? half(c[e / 2], lane, e)
                             : static_cast<double>(warp.Read<float>(c[kHalfAccumulator ? 0 : e])[lane]);
    }
  }
  for (int row = 0; row < kM; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < kN; ++n) sum[row][n] += matrix_a[row][k] * matrix_b[k][n];
    }
  }
  const FloatFormat format = FormatOf(Type::kF16);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    uint32_t packed = 0;
    for (int e = 0; e < 8; ++e) {
      int row = 0;
      int column = 0;
      PositionOf<Fragment::kAccumulator, kM, kN>(lane, e, &row, &column);
      const double value = sum[row][column];
      if constexpr (kHalfAccumulator) {
        const uint32_t bits =
            value != value ? 0x7fffu
                           : static_cast<uint32_t>(RoundToFormat(value, format, Rounding::kNearest, false));
        packed = e % 2 == 0 ? bits : packed | bits << 16;
        if (e % 2 == 1) warp.Write<uint32_t>(d[e / 2])[lane] = packed;
      } else {
        const float result = static_cast<float>(value);
        warp.Write<uint32_t>(d[e])[lane] = result != result ? 0x7fffffffu : std::bit_cast<uint32_t>(result);
      }
    }
  }
  if (warp.block->count) {
    ++warp.block->counters[Counter::kTensorInstructions];
    warp.block->counters[Counter::kTensorFlops] += 2 * kM * kN * 16;
  }
}

template <Fragment kFragment, int kM, int kN, bool kStore, bool kWide>
Handler PickLayout(const Opcode& o) {
  return o.Has("row") ? Move<kFragment, kM, kN, true, kStore, kWide>
                      : Move<kFragment, kM, kN, false, kStore, kWide>;
}

template <int kM, int kN>
Handler SelectShape(const Opcode& o) {
  const bool wide = o.type() == Type::kF32;
  if (o.Has("mma")) return wide ? Multiply<kM, kN, false> : Multiply<kM, kN, true>;
  if (o.Has("a")) return PickLayout<Fragment::kA, kM, kN, false, false>(o);
  if (o.Has("b")) return PickLayout<Fragment::kB, kM, kN, false, false>(o);
  if (o.Has("store")) {
    return wide ? PickLayout<Fragment::kAccumulator, kM, kN, true, true>(o)
                : PickLayout<Fragment::kAccumulator, kM, kN, true, false>(o);
  }
  return wide ? PickLayout<Fragment::kAccumulator, kM, kN, false, true>(o)
              : PickLayout<Fragment::kAccumulator, kM, kN, false, false>(o);
}

}  // namespace

Handler SelectWmma(const Opcode& o) {
  if (o.Has("m32n8k16")) return SelectShape<32, 8>(o);
  if (o.Has("m8n32k16")) return SelectShape<8, 32>(o);
  return SelectShape<16, 16>(o);
}

}  // namespace vqllm::ptx
