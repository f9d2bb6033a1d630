// What reads of scales ask of memory.
#include <algorithm>

#include "codegen/ops/parts.h"
#include "codegen/ops/traffic_parts.h"
#include "vq/base/math.h"
#include "vq/tensor.h"

namespace vqllm::internal {
void ScaleTraffic(const Plan& plan, const ScaleRead& read, int64_t times, Traffic& t) {
  const WeightLayout& layout = plan.layout;
  const int group = ScalesPerGroup(plan) ? plan.format.group : plan.k;
  const int64_t groups = ScaleGroups(plan.format, plan.k);
  const int bytes = UnitOf(plan.format).offset ? 4 : 2;
  const int64_t last_col = *std::max_element(read.cols.begin(), read.cols.end()) +
                           (read.groups.count - 1) * read.groups.stride +
                           (read.segments.count - 1) * read.segments.stride;
  const bool even = last_col < plan.k && (read.groups.count == 1 || read.groups.stride % group == 0) &&
                    (read.segments.count == 1 || read.segments.stride % group == 0);
  if (!even) {
    for (int64_t s = 0; s < read.segments.count; ++s) {
      for (int64_t g = 0; g < read.groups.count; ++g) {
        ScaleRead one;
        one.first_tile = read.first_tile;
        one.end_tile = read.end_tile;
        for (size_t lane = 0; lane < 32; ++lane) {
          const int64_t col = read.cols[lane] + s * read.segments.stride + g * read.groups.stride;
          one.cols[lane] = read.cols[lane] < 0 ? -1 : std::min<int64_t>(col, plan.k - 1);
        }
        ScaleTraffic(plan, one, times, t);
      }
    }
    return;
  }
  const auto request = [&](int64_t first_row, std::initializer_list<Loop> loops) {
    t.GlobalLoad(WarpAccess::Of([&](int lane) -> int64_t {
                   const int64_t col = read.cols[static_cast<size_t>(lane)];
                   if (col < 0) return -1;
                   const int64_t row = first_row + lane / layout.lanes_k * layout.unit_rows;
                   return ScaleIndex(layout, groups, std::min<int64_t>(row, plan.n - 1), col / group) * bytes;
                 }),
                 bytes, loops);
  };
  // Tiles of whole rows, the tile that rows end in, and warps without a tile.
  const int64_t whole = plan.n / layout.TileRows();
  const int64_t full = std::min(whole, read.end_tile) - read.first_tile;
  const bool partial = whole < layout.row_tiles && read.first_tile <= whole && whole < read.end_tile;
  const int64_t idle = read.end_tile - std::max(read.first_tile, layout.row_tiles);
  const int64_t group_bytes = int64_t{layout.TileRows()} * bytes;
  const Loop columns = {read.groups.count, read.groups.stride / group * group_bytes};
  const Loop segments = {read.segments.count, read.segments.stride / group * group_bytes};
  for (int slot = 0; slot < layout.row_slots; ++slot) {
    for (int j = 0; j < layout.unit_rows; ++j) {
      const int64_t row = slot * layout.lanes_row * layout.unit_rows + j;
      const int64_t tile = layout.TileRows();
      if (full > 0)
        request(read.first_tile * tile + row, {columns, segments, {times, 0}, {full, tile * groups * bytes}});
      if (partial) request(whole * tile + row, {columns, segments, {times, 0}});
      if (idle > 0) request(layout.row_tiles * tile + row, {columns, segments, {times * idle, 0}});
    }
  }
}

void ScaleTouch(const Plan& plan, Traffic& t) {
  const int64_t groups = ScaleGroups(plan.format, plan.k);
  const int64_t group = ScalesPerGroup(plan) ? plan.format.group : plan.k;
  const int64_t bytes = UnitOf(plan.format).offset ? 4 : 2;
  const int64_t block_rows = plan.BlockRows();
  const int64_t full = plan.n / block_rows;
  const bool idle_warps = plan.layout.row_tiles % plan.warps_n != 0;
  const WeightLayout& layout = plan.layout;
  const auto touch = [&](int64_t first, int64_t rows, int64_t blocks) {
    for (int z = 0; z < plan.split; ++z) {
      const int last_step = std::min((z + 1) * plan.steps_split, plan.steps) - 1;
      const int64_t begin = StartOf(plan, z * plan.steps_split).col / group;
      const int64_t end = CeilDiv(std::min<int64_t>(StartOf(plan, last_step + 1).col, plan.k), group);
      // Lanes at the piece of zeros read the scale behind the step: those of a group that is not full, and
      // warps without a row tile, which read the last row.
      const int64_t behind =
          std::min<int64_t>(StartOf(plan, last_step).col + plan.x_step_cols, plan.k - 1) / group;
      const bool reads_behind = plan.ragged && plan.compute == Compute::kFma && behind >= end;
      const bool segment_ends = StartOf(plan, last_step).segment != StartOf(plan, last_step + 1).segment;
      std::vector<ByteRange> ranges;
      for (int64_t row = first; row < first + rows; row += layout.TileRows()) {
        const int64_t inside = std::min<int64_t>(layout.TileRows(), first + rows - row);
        const auto read = [&](int64_t from, int64_t count, int64_t group_begin, int64_t group_end) {
          // Rows of a tile lie side by side, and whole tiles group after group.
          const int64_t alike = count == layout.TileRows() ? group_end - group_begin : 1;
          for (int64_t g = group_begin; g < group_end; g += alike)
            ranges.push_back({ScaleIndex(layout, groups, from, g) * bytes, alike * count * bytes});
        };
        read(row, inside, begin, end);
        if (!reads_behind) continue;
        if (segment_ends) {
          read(row, inside, behind, behind + 1);
        } else if (idle_warps && row + inside == plan.n) {
          read(plan.n - 1, 1, behind, behind + 1);
        }
      }
      t.Touch(Metric::kLoadSectorsPerBlock, ranges,
              {{blocks, block_rows * groups * bytes}, {plan.launches[0].grid_y, 0}});
    }
  };
  const int64_t whole = plan.n % block_rows == 0 && idle_warps ? full - 1 : full;
  if (whole > 0) touch(0, block_rows, whole);
  if (whole * block_rows < plan.n) touch(whole * block_rows, plan.n - whole * block_rows, 1);
  // Of the last row tile only the rows of the matrix.
  const int64_t whole_rows = plan.n / layout.TileRows() * layout.TileRows();
  std::vector<ByteRange> all = {{0, whole_rows * groups * bytes}};
  for (int64_t g = 0; whole_rows < plan.n && g < groups; ++g)
    all.push_back({ScaleIndex(layout, groups, whole_rows, g) * bytes, (plan.n - whole_rows) * bytes});
  t.Touch(Metric::kLoadSectorsPerLaunch, all, {});
}

}  // namespace vqllm::internal
