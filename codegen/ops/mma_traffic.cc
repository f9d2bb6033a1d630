// What the kernel of mma_kernel.cc asks of memory, part by part.
#include <algorithm>

#include "codegen/ops/parts.h"
#include "codegen/ops/traffic_parts.h"

namespace vqllm::internal {
namespace {

/// Row tiles times groups: what each a warp works on at once, once for each token tile.
int64_t WarpGroups(const Plan& plan) {
  int64_t groups = 0;
  for (const GroupRun& run : GroupRunsOf(plan.layout)) groups += run.Groups();
  return groups * plan.layout.row_tiles * plan.launches[0].grid_y;
}

/// A fragment of the lanes at a time: activations as they lie, or by ldmatrix after the shuffles.
void FragmentReads(const Plan& plan, Traffic& t) {
  const WeightLayout& layout = plan.layout;
  const int fragment_cols = layout.FragmentUnits() * layout.unit_cols;
  const double reads = static_cast<double>(WarpGroups(plan) * layout.chunk_pieces *
                                           (layout.PieceCols() / fragment_cols) * (plan.token_tile / 8));
  if (plan.fusion == Fusion::kRegisterShuffle) {
    t.MatrixLoad(WarpAccess::Of([&](int lane) {
                   return int64_t{2} * (lane % 8 * plan.token_pitch + lane / 8 * layout.PieceCols());
                 }),
                 4, reads * (fragment_cols / 8));
    return;
  }
  const int cols = fragment_cols % 8 == 0 ? 8 : 4;
  t.SharedLoad(WarpAccess::Of([&](int lane) {
                 return int64_t{2} * (lane / 4 * plan.token_pitch + lane % 4 * plan.piece_pitch);
               }),
               2 * cols, reads * (fragment_cols / cols));
}

/// A piece at a time: weights to the warp's tile and back, activations by ldmatrix.
void TileReads(const Plan& plan, Traffic& t) {
  const WeightLayout& layout = plan.layout;
  const double pieces = static_cast<double>(WarpGroups(plan) * layout.chunk_pieces);
  const int64_t pitch = int64_t{layout.lanes_k} * layout.PieceCols() + 8;
  const int cols = layout.FragmentUnits() * layout.unit_cols % 8 == 0 ? 8 : 4;
  const int lane_rows = layout.row_slots * layout.unit_rows;
  t.SharedStore(WarpAccess::Of([&](int lane) {
                  return 2 * (lane / 4 * layout.unit_rows * pitch + lane % 4 * layout.PieceCols());
                }),
                2 * cols, pieces * lane_rows * (layout.PieceCols() / cols));
  const double products = pieces * (layout.PieceCols() / 4);  // of the warp's columns, 16 each
  t.MatrixLoad(WarpAccess::Of([&](int lane) { return 2 * (lane % 16 * pitch + lane / 16 * 8); }), 4,
               products * (lane_rows / 2));
  const int at_once = layout.PieceCols() % 8 == 0 ? 2 : 1;
  t.MatrixLoad(
      WarpAccess::Of([&](int lane) { return int64_t{2} * (lane % 8 * plan.token_pitch + lane / 8 * 8); }),
      2 * at_once, products / at_once * (plan.token_tile / 8));
}

void Products(const Plan& plan, Traffic& t) {
  const WeightLayout& layout = plan.layout;
  if (plan.fusion == Fusion::kShared) {
    TileReads(plan, t);
  } else {
    FragmentReads(plan, t);
  }
  const double products = static_cast<double>(WarpGroups(plan) * layout.chunk_pieces) *
                          (layout.PieceCols() / 4) * (plan.token_tile / 8) *
                          (layout.row_slots * layout.unit_rows / 2);
  t[Metric::kTensorInstructions] += products;
  t[Metric::kTensorFlops] += products * 2 * 16 * 8 * 16;
}

/// ScaleAt: once a piece where a scale covers it, else once a unit.
void GroupScaleReads(const Plan& plan, Traffic& t) {
  const WeightLayout& layout = plan.layout;
  const int reads = ScalePerPiece(plan) ? 1 : layout.piece_units;
  for (const GroupRun& run : GroupRunsOf(layout)) {
    ScaleRead read;
    read.groups = {run.groups.count, run.groups.stride * layout.ChunkCols()};
    read.segments = {run.segments.count, layout.segment_cols};
    read.end_tile = layout.row_tiles;
    for (int i = 0; i < layout.chunk_pieces * reads; ++i) {
      for (size_t lane = 0; lane < 32; ++lane) {
        const int64_t piece = i / reads * 4 + static_cast<int64_t>(lane) % 4;
        read.cols[lane] = run.first_col + piece * layout.PieceCols() + i % reads * layout.unit_cols;
      }
      ScaleTraffic(plan, read, plan.launches[0].grid_y, t);
    }
  }
  ScaleTouch(plan, t);
}

/// Sums to shared memory and from there to the outputs, rows of a block side by side.
void Epilogue(const Plan& plan, Traffic& t) {
  const KernelLaunch& launch = plan.launches[0];
  const int64_t block_rows = plan.BlockRows();
  const int64_t sum_pitch = block_rows + 4;
  const double blocks = static_cast<double>(launch.grid_x) * launch.grid_y * launch.grid_z;
  // Rows of a unit lie side by side where the lane that decoded it multiplies it, too.
  const int lane_rows = plan.fusion == Fusion::kShared ? 1 : plan.layout.unit_rows;
  t.SharedStore(
      WarpAccess::Of([&](int lane) { return 4 * (lane % 4 * 2 * sum_pitch + lane / 4 * lane_rows); }), 4,
      blocks * (plan.Threads() / 32) * (plan.layout.row_slots * plan.layout.unit_rows / 2) *
          (plan.token_tile / 8) * 4);

  const int64_t values = plan.token_tile * block_rows;
  const bool whole_rows = block_rows % 32 == 0;  // a request stays within a token
  const int64_t out_bytes = plan.split > 1 ? 4 : 2;
  const auto write = [&](int64_t first_row, int64_t blocks_x, int64_t first_token, int64_t blocks_y) {
    const int64_t tokens = std::min<int64_t>(plan.token_tile, plan.m - first_token);
    const int64_t rows = std::min<int64_t>(block_rows, plan.n - first_row);
    const bool alike = whole_rows && rows == block_rows;
    for (int64_t first = 0; first < (alike ? 32 : whole_rows ? block_rows : values); first += 32) {
      const auto inside = [&](int lane, int64_t bytes, bool by_token) -> int64_t {
        const int64_t i = first + lane;
        const int64_t token = i / block_rows;
        const int64_t row = i % block_rows;
        if (i >= values || token >= tokens || row >= rows) return -1;
        return bytes * ((by_token ? (first_token + token) * plan.n : 0) + first_row + row);
      };
      const Loop along = {alike ? block_rows / 32 : 1, 32};
      const Loop down = {whole_rows ? tokens : 1, plan.n};
      const auto loops_of = [&](int64_t bytes, bool by_token) {
        return std::array<Loop, 4>{Loop{along.count, along.stride * bytes},
                                   Loop{down.count, by_token ? down.stride * bytes : 0},
                                   Loop{blocks_x, block_rows * bytes},
                                   Loop{blocks_y, by_token ? plan.token_tile * plan.n * bytes : 0}};
      };
      const auto read = [&](int64_t bytes) {
        const auto l = loops_of(bytes, false);
        t.GlobalLoad(WarpAccess::Of([&](int lane) { return inside(lane, bytes, false); }),
                     static_cast<int>(bytes), {l[0], l[1], l[2], l[3], {plan.split, 0}});
      };
      // The sums of what is written; where nothing is guarded that is all of them.
      WarpAccess sums = WarpAccess::Of([&](int lane) { return inside(lane, 4, false); });
      for (int64_t lane = 0; lane < 32; ++lane)
        sums.at[static_cast<size_t>(lane)] =
            4 * ((first + lane) / block_rows * sum_pitch + (first + lane) % block_rows);
      t.SharedLoad(
          sums, 4,
          static_cast<double>(along.count * down.count * blocks_x * blocks_y) * plan.split * plan.warps_k);
      if (ScalesPerOutput(plan)) read(UnitOf(plan.format).offset ? 4 : 2);
      if (plan.bias && plan.split == 1) read(2);
      const auto l = loops_of(out_bytes, true);
      const WarpAccess out = WarpAccess::Of([&](int lane) { return inside(lane, out_bytes, true); });
      t.GlobalStore(out, static_cast<int>(out_bytes),
                    {l[0], l[1], l[2], l[3], {plan.split, out_bytes * plan.m * plan.n}});
      if (HasFactor(plan)) {
        WarpAccess factor = out;
        factor.at.fill(0);
        t.GlobalLoad(factor, 4,
                     {{l[0].count, 0}, {l[1].count, 0}, {blocks_x, 0}, {blocks_y, 0}, {plan.split, 0}});
      }
    }
  };
  for (const auto& [row, blocks_x] :
       {std::pair{int64_t{0}, plan.n / block_rows},
        std::pair{plan.n / block_rows * block_rows, int64_t{plan.n % block_rows > 0}}}) {
    const int64_t full_y = plan.m / plan.token_tile;
    if (blocks_x > 0 && full_y > 0) write(row, blocks_x, 0, full_y);
    if (blocks_x > 0 && plan.m % plan.token_tile > 0) write(row, blocks_x, full_y * plan.token_tile, 1);
  }
}

/// Arrivals at barriers, a warp: one a step, another where a codebook was loaded, two round the sums.
double BarriersOfWarp(const Plan& plan) {
  double barriers = 2.0 * plan.split + plan.steps;
  if (!plan.segmented) return barriers;
  for (int step = 0; step < plan.steps; ++step)
    barriers += step % plan.steps_split == 0 || step % plan.steps_segment == 0 ? 1 : 0;
  return barriers;
}

}  // namespace

Traffic MmaTraffic(const Plan& plan) {
  Traffic t;
  const KernelLaunch& launch = plan.launches[0];
  StageTraffic(plan, plan.x_vector > 1, t);
  CodebookTraffic(plan, plan.segmented ? CodebookCalls::kSegment : CodebookCalls::kBlock, t);
  CodeTraffic(plan, t);
  DecodeTraffic(plan, false, t);
  Products(plan, t);
  if (ScalesPerGroup(plan)) GroupScaleReads(plan, t);
  Epilogue(plan, t);
  OutputTouch(plan, t);
  t[Metric::kBarriers] += BarriersOfWarp(plan) * launch.grid_x * launch.grid_y * (plan.Threads() / 32);
  t[Metric::kBlocks] += static_cast<double>(launch.grid_x) * launch.grid_y * launch.grid_z;
  SumPartialsTraffic(plan, t);
  return t;
}

}  // namespace vqllm::internal
