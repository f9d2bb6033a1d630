// What the kernel of fma_kernel.cc asks of memory, part by part.
#include "codegen/ops/parts.h"
#include "codegen/ops/traffic_parts.h"

namespace vqllm::internal {
namespace {

/// The piece that a column lane works on, of the step. Lanes without a chunk take the piece of zeros.
int64_t PieceOf(const Plan& plan, const GroupRun& run, int p, int column_lane) {
  const WeightLayout& layout = plan.layout;
  const int64_t group_pieces = static_cast<int64_t>(layout.lanes_k) * layout.chunk_pieces;
  if (column_lane >= run.lanes) return plan.step_groups * group_pieces;
  return run.first_group % plan.step_groups * group_pieces + static_cast<int64_t>(p) * run.lanes +
         column_lane;
}

/// Reads of staged activations: each fragment and token once, by warps without a row tile too.
void ActivationReads(const Plan& plan, Traffic& t) {
  const WeightLayout& layout = plan.layout;
  const int cols = layout.FragmentUnits() * layout.unit_cols % 8 == 0 ? 8 : 4;
  const int reads = layout.PieceCols() / cols * plan.token_tile;
  for (const GroupRun& run : GroupRunsOf(layout)) {
    const double times = static_cast<double>(run.Groups() * plan.launches[0].grid_y * reads);
    const int64_t warps = plan.ragged ? layout.row_tiles : WarpRows(plan);
    for (int p = 0; p < layout.chunk_pieces; ++p) {
      t.SharedLoad(WarpAccess::Of([&](int lane) {
                     return 2 * plan.piece_pitch * PieceOf(plan, run, p, lane % layout.lanes_k);
                   }),
                   2 * cols, times * static_cast<double>(warps));
    }
    const double idle = static_cast<double>((WarpRows(plan) - warps) * layout.chunk_pieces);
    if (idle > 0) t.SharedLoad(WarpAccess::Of([](int) { return 0; }), 2 * cols, times * idle);
  }
}

/// ScaleAt of group scales: once a piece where a group covers it, else once a unit.
void GroupScaleReads(const Plan& plan, Traffic& t) {
  const WeightLayout& layout = plan.layout;
  const int reads = ScalePerPiece(plan) ? 1 : layout.piece_units;
  for (const GroupRun& run : GroupRunsOf(layout)) {
    ScaleRead read;
    read.groups = {run.groups.count, run.groups.stride * layout.ChunkCols()};
    read.segments = {run.segments.count, layout.segment_cols};
    read.end_tile = plan.ragged ? layout.row_tiles : WarpRows(plan);
    const int64_t step_col =
        run.first_col - run.first_group % plan.step_groups * layout.lanes_k * layout.ChunkCols();
    for (int i = 0; i < layout.chunk_pieces * reads; ++i) {
      for (size_t lane = 0; lane < 32; ++lane) {
        const int column_lane = static_cast<int>(lane) % layout.lanes_k;
        read.cols[lane] = step_col + PieceOf(plan, run, i / reads, column_lane) * layout.PieceCols() +
                          i % reads * layout.unit_cols;
      }
      ScaleTraffic(plan, read, plan.launches[0].grid_y, t);
    }
    // All lanes of a warp without a row tile read one place.
    if (read.end_tile == WarpRows(plan)) continue;
    ScaleRead idle;
    idle.first_tile = read.end_tile;
    idle.end_tile = WarpRows(plan);
    ScaleTraffic(plan, idle, run.Groups() * layout.chunk_pieces * reads * plan.launches[0].grid_y, t);
  }
  ScaleTouch(plan, t);
}

}  // namespace

Traffic FmaTraffic(const Plan& plan) {
  Traffic t;
  const KernelLaunch& launch = plan.launches[0];
  CodebookTraffic(plan, plan.segmented ? CodebookCalls::kStep : CodebookCalls::kBlock, t);
  StageTraffic(plan, false, t);
  if (plan.ragged) {
    // The piece of zeros, at every step.
    const int piece = plan.layout.PieceCols();
    const int64_t values = static_cast<int64_t>(plan.token_tile) * piece;
    const double copies = static_cast<double>(launch.grid_x) * launch.grid_y * plan.steps;
    for (int64_t first = 0; first < values; first += 32) {
      t.SharedStore(WarpAccess::Of([&](int lane) -> int64_t {
                      const int64_t i = first + lane;
                      return i < values ? 2 * (i / piece * plan.token_pitch + i % piece) : -1;
                    }),
                    2, copies);
    }
  }
  CodeTraffic(plan, t);
  DecodeTraffic(plan, true, t);
  ActivationReads(plan, t);
  if (ScalesPerGroup(plan)) GroupScaleReads(plan, t);
  RowSumTraffic(plan, t);
  OutputTouch(plan, t);
  t[Metric::kBarriers] += 2.0 * launch.grid_x * launch.grid_y * plan.steps * (plan.Threads() / 32);
  t[Metric::kBlocks] += static_cast<double>(launch.grid_x) * launch.grid_y * launch.grid_z;
  SumPartialsTraffic(plan, t);
  return t;
}

}  // namespace vqllm::internal
