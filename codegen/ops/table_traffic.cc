// What the kernel of table_kernel.cc asks of memory, part by part.
#include <algorithm>

#include "codegen/ops/parts.h"
#include "codegen/ops/traffic_parts.h"
#include "vq/tensor.h"

namespace vqllm::internal {
namespace {

/// Groups of a row tile: what a block makes a table for.
int64_t GroupsOf(const WeightLayout& layout) {
  int64_t groups = 0;
  for (const GroupRun& run : GroupRunsOf(layout)) groups += run.Groups();
  return groups;
}

/// Bytes of one read of activations by MakeTable.
int ActivationBytes(const Plan& plan) {
  const int v = plan.format.subvector;
  return v % 8 == 0 ? 16 : v % 4 == 0 ? 8 : v % 2 == 0 ? 4 : 2;
}

/// MakeTable of one stage whose codebook of the first segment is `base` bytes into the codebooks.
void MakeTableTraffic(const Plan& plan, const StageTier& tier, int64_t base, int64_t band_bytes, Traffic& t) {
  const EntryShape entry = EntryShapeOf(plan.format);
  const int64_t book_bytes = tier.entries * int64_t{entry.bytes};
  const KernelLaunch& launch = plan.launches[0];
  const int64_t band_blocks =
      band_bytes > 0 ? std::max<int64_t>(1, plan.format.scope.rows / plan.BlockRows()) : launch.grid_x;
  const double tables = static_cast<double>(GroupsOf(plan.layout) * launch.grid_x * launch.grid_y);
  const int x_bytes = ActivationBytes(plan);
  const double x_reads =
      static_cast<double>(plan.layout.ChunkUnits()) * plan.token_tile * plan.format.subvector * 2 / x_bytes;
  for (int first = 0; first < tier.entries; first += 32) {
    const auto lanes = [&](int64_t stride, int64_t at) {
      return WarpAccess::Of([&](int lane) { return first + lane < tier.entries ? at + lane * stride : -1; });
    };
    for (int64_t block = 0; block < launch.grid_x; block += band_blocks) {
      const int64_t blocks = std::min(band_blocks, launch.grid_x - block);
      const int64_t band = base + block / band_blocks * band_bytes + int64_t{first} * entry.bytes;
      for (const GroupRun& run : GroupRunsOf(plan.layout)) {
        const int64_t segment = plan.segmented ? run.first_chunk / plan.layout.segment_chunks : 0;
        for (int vector = 0; vector < entry.used_vectors; ++vector) {
          t.GlobalLoad(lanes(entry.bytes, band + segment * book_bytes + vector * entry.vector_bytes),
                       entry.vector_bytes,
                       {{run.segments.count, plan.segmented ? book_bytes : 0},
                        {run.groups.count, 0},
                        {blocks, 0},
                        {launch.grid_y, 0}});
        }
      }
    }
    t.SharedLoad(lanes(0, 0), x_bytes, tables * x_reads);
    t.SharedStore(lanes(4, 0), 4, tables * plan.layout.ChunkUnits() * plan.token_tile);
  }
}

/// First touch of codebooks: a block reads whole ones, those of its segments.
void CodebookTouch(const Plan& plan, int64_t across, Traffic& t) {
  const int64_t entry_bytes = EntryShapeOf(plan.format).bytes;
  const KernelLaunch& launch = plan.launches[0];
  const int64_t books = CodebookCount(plan.format, plan.n, plan.k);
  for (int z = 0; z < plan.split; ++z) {
    const int last_step = std::min((z + 1) * plan.steps_split, plan.steps) - 1;
    const int64_t begin = plan.segmented ? StartOf(plan, z * plan.steps_split).segment : 0;
    const int64_t end = plan.segmented ? StartOf(plan, last_step).segment + 1 : 1;
    for (int64_t block = 0; block < launch.grid_x; ++block) {
      const int64_t band = across > 0 ? block * plan.BlockRows() / plan.format.scope.rows : 0;
      std::vector<ByteRange> ranges;
      int64_t stage_at = 0;
      for (const StageTier& tier : plan.stages) {
        const int64_t book_bytes = tier.entries * entry_bytes;
        ranges.push_back({stage_at + (band * across + begin) * book_bytes, (end - begin) * book_bytes});
        stage_at += books * book_bytes;
      }
      t.Touch(Metric::kLoadSectorsPerBlock, ranges,
              {{across > 0 ? 1 : launch.grid_x, 0}, {launch.grid_y, 0}});
      if (across == 0) break;
    }
  }
  int64_t all_bytes = 0;
  for (const StageTier& tier : plan.stages) all_bytes += books * tier.entries * entry_bytes;
  const ByteRange all[] = {{0, all_bytes}};
  t.Touch(Metric::kLoadSectorsPerLaunch, all, {});
}

void GroupScaleReads(const Plan& plan, Traffic& t) {
  for (const GroupRun& run : GroupRunsOf(plan.layout)) {
    ScaleRead read;
    read.cols.fill(run.first_col);
    read.groups = {run.groups.count, run.groups.stride * plan.layout.ChunkCols()};
    read.segments = {run.segments.count, plan.layout.segment_cols};
    read.end_tile = WarpRows(plan);
    ScaleTraffic(plan, read, plan.launches[0].grid_y, t);
  }
  ScaleTouch(plan, t);
}

}  // namespace

Traffic TableTraffic(const Plan& plan) {
  Traffic t;
  const Format& f = plan.format;
  const KernelLaunch& launch = plan.launches[0];
  StageTraffic(plan, false, t);
  CodeTraffic(plan, t);
  const int64_t across =
      plan.segmented && f.scope.kind == ScopeKind::kTile ? (plan.k + f.scope.cols - 1) / f.scope.cols : 0;
  int64_t stage_at = 0;
  for (const StageTier& tier : plan.stages) {
    const int64_t book_bytes = tier.entries * int64_t{EntryShapeOf(f).bytes};
    MakeTableTraffic(plan, tier, stage_at, across * book_bytes, t);
    stage_at += CodebookCount(f, plan.n, plan.k) * book_bytes;
  }
  CodebookTouch(plan, across, t);
  DecodeTraffic(plan, true, t);
  if (ScalesPerGroup(plan)) GroupScaleReads(plan, t);
  RowSumTraffic(plan, t);
  OutputTouch(plan, t);
  t[Metric::kBarriers] += 2.0 * static_cast<double>(GroupsOf(plan.layout) * launch.grid_x * launch.grid_y) *
                          (plan.Threads() / 32);
  t[Metric::kBlocks] += static_cast<double>(launch.grid_x) * launch.grid_y * launch.grid_z;
  SumPartialsTraffic(plan, t);
  return t;
}

}  // namespace vqllm::internal
