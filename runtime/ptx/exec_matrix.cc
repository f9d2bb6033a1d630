#include <cmath>
#include <limits>

#include "runtime/ptx/access.h"
#include "runtime/ptx/exec.h"
#include "runtime/ptx/half_math.h"
#include "runtime/ptx/tensor.h"

namespace vqllm::ptx {
namespace {

// The addresses of the rows: lane 8 q + r has that of row r of matrix q.
uint32_t ResolveRows(Warp& warp, const Instruction& instruction, int matrices, Lanes32& lanes) {
  LaneAddresses(warp, instruction.source[0], instruction.wide_address, instruction.offset, lanes.address);
  const uint32_t needed = matrices == 4 ? kAllLanes : (1u << (8 * matrices)) - 1;
  // With 64 bits the address is generic or, as some code has it, an offset into shared memory.
  ForLanes(needed, [&](int i) {
    if (lanes.address[i] - kSharedWindow < kWindowBytes) lanes.address[i] -= kSharedWindow;
  });
  const uint32_t good = ResolveShared(warp, lanes, needed, 16);
  Block& block = *warp.block;
  if (block.count && good != 0) {
    uint32_t address[kWarpSize];
    for (int i = 0; i < kWarpSize; ++i) address[i] = static_cast<uint32_t>(lanes.address[i]);
    const Wavefronts wavefronts = CountWavefronts(address, good, 16);
    ++block.counters[Counter::kMatrixLoadRequests];
    block.counters[Counter::kMatrixLoadWavefronts] += wavefronts.actual;
    block.counters[Counter::kMatrixLoadWavefrontsIdeal] += wavefronts.ideal;
    if (!block.traffic.empty()) block.traffic[warp.pc].wavefronts += wavefronts.actual;
  }
  return good == needed ? needed : 0;
}

// Row and column of the first of the two halves that lane l holds of an 8x8 matrix.
constexpr int RowOf(int lane) { return lane / 4; }
constexpr int ColumnOf(int lane) { return lane % 4 * 2; }

template <int kMatrices, bool kTrans>
void LoadMatrix(Warp& warp, const Instruction& instruction) {
  if (!RequireWholeWarp(warp)) return;
  Lanes32 lanes;
  const uint32_t rows = ResolveRows(warp, instruction, kMatrices, lanes);
  if (rows == 0) return;
  for (int q = 0; q < kMatrices; ++q) {
    uint16_t matrix[8][8];
    for (int r = 0; r < 8; ++r) {
      const int lane = q * 8 + r;
      std::memcpy(matrix[r], lanes.host[lane], 16);
      if (warp.block->check) {
        warp.block->shadow.Read(warp, lane, static_cast<uint32_t>(lanes.address[lane]), 16);
      }
    }
    uint32_t* out = warp.Write<uint32_t>(instruction.list[q]);
    for (int l = 0; l < kWarpSize; ++l) {
      const int r = RowOf(l);
      const int c = ColumnOf(l);
      const uint32_t low = kTrans ? matrix[c][r] : matrix[r][c];
      const uint32_t high = kTrans ? matrix[c + 1][r] : matrix[r][c + 1];
      out[l] = high << 16 | low;
    }
  }
}

template <int kMatrices, bool kTrans>
void StoreMatrix(Warp& warp, const Instruction& instruction) {
  if (!RequireWholeWarp(warp)) return;
  Lanes32 lanes;
  const uint32_t rows = ResolveRows(warp, instruction, kMatrices, lanes);
  if (rows == 0) return;
  for (int q = 0; q < kMatrices; ++q) {
    uint16_t matrix[8][8];
    const uint32_t* in = warp.Read<uint32_t>(instruction.list[q]);
    for (int l = 0; l < kWarpSize; ++l) {
      const int r = RowOf(l);
      const int c = ColumnOf(l);
      (kTrans ? matrix[c][r] : matrix[r][c]) = static_cast<uint16_t>(in[l]);
      (kTrans ? matrix[c + 1][r] : matrix[r][c + 1]) = static_cast<uint16_t>(in[l] >> 16);
    }
    for (int r = 0; r < 8; ++r) {
      const int lane = q * 8 + r;
      std::memcpy(lanes.host[lane], matrix[r], 16);
      if (warp.block->check) {
        warp.block->shadow.Write(warp, lane, static_cast<uint32_t>(lanes.address[lane]), 16);
      }
    }
  }
}

void TransposeMatrix(Warp& warp, const Instruction& instruction) {
  if (!RequireWholeWarp(warp)) return;
  const uint32_t* in = warp.Read<uint32_t>(instruction.source[0]);
  uint16_t matrix[8][8];
  for (int l = 0; l < kWarpSize; ++l) {
    matrix[RowOf(l)][ColumnOf(l)] = static_cast<uint16_t>(in[l]);
    matrix[RowOf(l)][ColumnOf(l) + 1] = static_cast<uint16_t>(in[l] >> 16);
  }
  uint32_t* out = warp.Write<uint32_t>(instruction.dest[0]);
  for (int l = 0; l < kWarpSize; ++l) {
    out[l] = matrix[ColumnOf(l)][RowOf(l)] | static_cast<uint32_t>(matrix[ColumnOf(l) + 1][RowOf(l)]) << 16;
  }
}

template <bool kTrans>
Handler SelectMove(bool store, int matrices) {
  if (store) {
    return matrices == 4   ? StoreMatrix<4, kTrans>
           : matrices == 2 ? StoreMatrix<2, kTrans>
                           : StoreMatrix<1, kTrans>;
  }
  return matrices == 4   ? LoadMatrix<4, kTrans>
         : matrices == 2 ? LoadMatrix<2, kTrans>
                         : LoadMatrix<1, kTrans>;
}

}  // namespace

Handler SelectMatrixMove(const Opcode& o) {
  if (o.base == "movmatrix") return TransposeMatrix;
  const int matrices = o.Has("x4") ? 4 : o.Has("x2") ? 2 : 1;
  const bool store = o.base == "stmatrix";
  return o.Has("trans") ? SelectMove<true>(store, matrices) : SelectMove<false>(store, matrices);
}

bool RequireWholeWarp(Warp& warp) {
  if (warp.mask == kAllLanes) return true;
  warp.block->Report(HazardKind::kInactiveLane, warp, FirstLane(~warp.mask), warp.mask,
                     "an instruction of the whole warp without all of its lanes");
  return false;
}

}  // namespace vqllm::ptx
