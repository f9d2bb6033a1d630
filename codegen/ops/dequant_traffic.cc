// What the kernel of dequant.cc asks of memory, part by part.
#include <algorithm>

#include "codegen/ops/parts.h"
#include "codegen/ops/traffic_parts.h"

namespace vqllm::internal {
namespace {

int64_t LanePiece(const WeightLayout& layout, const GroupRun& run, int unit, int column_lane) {
  return static_cast<int64_t>(unit / layout.piece_units) * run.lanes + column_lane;
}
int64_t LaneColumn(const WeightLayout& layout, const GroupRun& run, int unit, int column_lane) {
  return run.first_col + LanePiece(layout, run, unit, column_lane) * layout.PieceCols() +
         unit % layout.piece_units * layout.unit_cols;
}

/// Group scales: every lane reads, those without a chunk too; units of several rows read inside the matrix.
void GroupScaleReads(const Plan& plan, Traffic& t) {
  const WeightLayout& layout = plan.layout;
  for (const GroupRun& run : GroupRunsOf(layout)) {
    for (int unit = 0; unit < layout.ChunkUnits(); ++unit) {
      ScaleRead read;
      read.groups = {run.groups.count, run.groups.stride * layout.ChunkCols()};
      read.segments = {run.segments.count, layout.segment_cols};
      read.end_tile = layout.unit_rows > 1 ? layout.row_tiles : WarpRows(plan);
      for (size_t lane = 0; lane < 32; ++lane) {
        const int column_lane = static_cast<int>(lane) % layout.lanes_k;
        read.cols[lane] = LaneColumn(layout, run, unit, column_lane);
        if (layout.unit_rows > 1 && (column_lane >= run.lanes || read.cols[lane] >= plan.k))
          read.cols[lane] = -1;
      }
      ScaleTraffic(plan, read, 1, t);
    }
  }
  ScaleTouch(plan, t);
}

/// Weights, `bytes` a store: pairs of columns where k is even, else one by one.
void Stores(const Plan& plan, Traffic& t) {
  const WeightLayout& layout = plan.layout;
  const bool paired = layout.unit_rows == 1 && layout.unit_cols % 2 == 0 && plan.k % 2 == 0;
  const int cols = paired ? 2 : 1;
  const int64_t row_bytes = int64_t{2} * plan.k;
  const int64_t full = plan.n / layout.TileRows();
  for (const GroupRun& run : GroupRunsOf(layout)) {
    const auto tiles = [&](int64_t first, int64_t count) {
      for (int slot = 0; slot < layout.row_slots; ++slot) {
        for (int unit = 0; unit < layout.ChunkUnits(); ++unit) {
          for (int j = 0; j < layout.unit_rows; ++j) {
            for (int e = 0; e < layout.unit_cols; e += cols) {
              const WarpAccess access = WarpAccess::Of([&](int lane) -> int64_t {
                const int column_lane = lane % layout.lanes_k;
                const int64_t row =
                    first + (slot * layout.lanes_row + lane / layout.lanes_k) * layout.unit_rows + j;
                const int64_t col = LaneColumn(layout, run, unit, column_lane) + e;
                if (column_lane >= run.lanes || row >= plan.n || col >= plan.k) return -1;
                return row * row_bytes + 2 * col;
              });
              t.GlobalStore(access, 2 * cols,
                            {{run.groups.count, 2 * run.groups.stride * layout.ChunkCols()},
                             {run.segments.count, 2 * layout.segment_cols},
                             {count, layout.TileRows() * row_bytes}});
            }
          }
        }
      }
    };
    if (full > 0) tiles(0, full);
    if (full < layout.row_tiles) tiles(full * layout.TileRows(), 1);
  }
}

void StoreTouch(const Plan& plan, Traffic& t) {
  const int64_t row_bytes = int64_t{2} * plan.k;
  const int64_t full = plan.n / plan.BlockRows();
  const auto touch = [&](int64_t first, int64_t rows, int64_t blocks) {
    for (int z = 0; z < plan.split; ++z) {
      const int64_t begin = StartOf(plan, z * plan.steps_split).col;
      const int64_t behind = StartOf(plan, std::min((z + 1) * plan.steps_split, plan.steps)).col;
      const int64_t end = std::min<int64_t>(behind, plan.k);
      std::vector<ByteRange> ranges;
      for (int64_t row = first; row < first + rows; ++row)
        ranges.push_back({row * row_bytes + 2 * begin, 2 * (end - begin)});
      t.Touch(Metric::kStoreSectorsPerBlock, ranges, {{blocks, plan.BlockRows() * row_bytes}});
    }
  };
  if (full > 0) touch(0, plan.BlockRows(), full);
  if (plan.n % plan.BlockRows() != 0) touch(full * plan.BlockRows(), plan.n % plan.BlockRows(), 1);
  const ByteRange all[] = {{0, row_bytes * plan.n}};
  t.Touch(Metric::kStoreSectorsPerLaunch, all, {});
}

}  // namespace

Traffic DequantTraffic(const Plan& plan) {
  Traffic t;
  const KernelLaunch& launch = plan.launches[0];
  CodebookTraffic(plan, plan.segmented ? CodebookCalls::kStep : CodebookCalls::kBlock, t);
  CodeTraffic(plan, t);
  DecodeTraffic(plan, true, t);
  if (ScalesPerGroup(plan)) GroupScaleReads(plan, t);
  Stores(plan, t);
  StoreTouch(plan, t);
  if (plan.codebook_bytes > 0) {
    const double barriers = plan.segmented ? 2.0 * plan.steps : plan.split;
    t[Metric::kBarriers] += barriers * launch.grid_x * (plan.Threads() / 32);
  }
  t[Metric::kBlocks] += static_cast<double>(launch.grid_x) * launch.grid_z;
  return t;
}

}  // namespace vqllm::internal
