#include "codegen/ops/traffic_parts.h"

#include <algorithm>

#include "codegen/ops/parts.h"
#include "vq/base/check.h"
#include "vq/base/math.h"

namespace vqllm::internal {
namespace {

constexpr int kElementBytes = 2;  // of activations and outputs

/// Blocks along an axis of `total` in tiles of `tile`: full ones, and what the last holds (0: nothing).
struct Tiling {
  int64_t full = 0;
  int64_t rest = 0;
};
Tiling TilingOf(int64_t total, int64_t tile) { return {total / tile, total % tile}; }

int64_t ChunkBytes(const WeightLayout& layout) {
  return int64_t{4} * layout.TileUnitRows() * layout.chunk_words;  // a chunk of all rows of a tile
}

/// First touch of codes: a block reads the chunks of its steps of its row tiles.
void CodeTouch(const Plan& plan, Traffic& t) {
  const WeightLayout& layout = plan.layout;
  const int64_t tile_bytes = 4 * layout.TileWords();
  const int64_t token_blocks = plan.launches[0].grid_y;
  const Tiling tiles = TilingOf(layout.row_tiles, plan.warps_n);
  const auto touch = [&](int64_t count, int64_t first, int64_t blocks) {
    for (int z = 0; z < plan.split; ++z) {
      const int64_t begin = StartOf(plan, z * plan.steps_split).chunk;
      const int64_t end = StartOf(plan, std::min((z + 1) * plan.steps_split, plan.steps)).chunk;
      std::vector<ByteRange> ranges;
      if (end - begin == layout.TotalChunks()) {
        ranges.push_back({first * tile_bytes, count * tile_bytes});
      } else {
        for (int64_t i = 0; i < count; ++i)
          ranges.push_back(
              {(first + i) * tile_bytes + begin * ChunkBytes(layout), (end - begin) * ChunkBytes(layout)});
      }
      t.Touch(Metric::kLoadSectorsPerBlock, ranges, {{blocks, plan.warps_n * tile_bytes}, {token_blocks, 0}});
    }
  };
  if (tiles.full > 0) touch(plan.warps_n, 0, tiles.full);
  if (tiles.rest > 0) touch(tiles.rest, tiles.full * plan.warps_n, 1);
  const ByteRange all[] = {{0, 4 * layout.Words()}};
  t.Touch(Metric::kLoadSectorsPerLaunch, all, {});
}

/// Copies of `tokens` tokens' first `cols` columns of a step, by `blocks` blocks, `times` times each.
void StageLoads(const Plan& plan, bool async, int64_t first_col, int64_t cols, int64_t tokens,
                std::initializer_list<Loop> blocks, Traffic& t) {
  const int v = plan.x_vector;
  const int bytes = v * kElementBytes;
  const int64_t row_vectors = plan.x_step_cols / v;
  const int64_t all_vectors = plan.token_tile * row_vectors;
  const int64_t base = first_col * kElementBytes;
  const int64_t row_bytes = int64_t{kElementBytes} * plan.k;
  const auto load = [&](const WarpAccess& access, std::initializer_list<Loop> loops) {
    if (async) {
      t.AsyncCopy(access, bytes, loops);
    } else {
      t.GlobalLoad(access, bytes, loops);
    }
  };
  VQLLM_CHECK(blocks.size() == 3);
  const Loop* outer = blocks.begin();
  if (tokens == plan.token_tile && cols == plan.x_step_cols && row_vectors % 32 == 0) {
    load(WarpAccess::Of([&](int lane) { return base + int64_t{lane} * bytes; }),
         {{row_vectors / 32, int64_t{32} * bytes}, {tokens, row_bytes}, outer[0], outer[1], outer[2]});
    return;
  }
  for (int64_t first = 0; first < all_vectors; first += 32) {
    load(WarpAccess::Of([&](int lane) -> int64_t {
           const int64_t i = first + lane;
           const int64_t token = i / row_vectors;
           const int64_t col = i % row_vectors * v;
           if (i >= all_vectors || token >= tokens || col >= cols) return -1;
           return base + token * row_bytes + col * kElementBytes;
         }),
         blocks);
  }
}

/// What one step's copies write to shared memory, `times` times.
void StageWrites(const Plan& plan, bool async, double times, Traffic& t) {
  const int v = plan.x_vector;
  const int bytes = v * kElementBytes;
  const int piece = plan.layout.PieceCols();
  const int64_t row_vectors = plan.x_step_cols / v;
  const int64_t all_vectors = plan.token_tile * row_vectors;
  // Where a warp's vectors begin at the same place of a piece each time, one request stands for all.
  const bool alike = row_vectors % 32 == 0 && (32 * v % piece == 0 || piece % (32 * v) == 0);
  for (int64_t first = 0; first < all_vectors; first += 32) {
    const WarpAccess to = WarpAccess::Of([&](int lane) -> int64_t {
      const int64_t i = first + lane;
      if (i >= all_vectors) return -1;
      const int64_t col = i % row_vectors * v;
      return kElementBytes *
             (i / row_vectors * plan.token_pitch + col / piece * plan.piece_pitch + col % piece);
    });
    const double repeats = times * static_cast<double>(alike ? all_vectors / 32 : 1);
    if (async) {
      t.AsyncWrite(to, bytes, repeats);
    } else {
      t.SharedStore(to, bytes, repeats);
    }
    if (alike) return;
  }
}

/// The columns that the steps of one block stage.
struct ColumnSpan {
  int64_t begin = 0;
  int64_t end = 0;
};
ColumnSpan StagedBy(const Plan& plan, int z) {
  const int first = z * plan.steps_split;
  const int last = std::min(first + plan.steps_split, plan.steps) - 1;
  // The last step of a segment may reach into the next one.
  int64_t end = 0;
  for (int step = std::max(first, last - plan.steps_segment); step <= last; ++step)
    end = std::max(end, StartOf(plan, step).col + plan.x_step_cols);
  return {StartOf(plan, first).col, std::min<int64_t>(plan.k, end)};
}

/// First touch of `tokens` rows of elements of `bytes` bytes, `pitch` elements apart, columns [begin, end).
void TouchRows(Metric metric, int64_t tokens, int64_t pitch, int64_t begin, int64_t end, int64_t bytes,
               std::initializer_list<Loop> loops, Traffic& t) {
  std::vector<ByteRange> ranges;
  for (int64_t token = 0; token < tokens; ++token)
    ranges.push_back({(token * pitch + begin) * bytes, (end - begin) * bytes});
  t.Touch(metric, ranges, loops);
}

}  // namespace

std::vector<GroupRun> GroupRunsOf(const WeightLayout& layout) {
  std::vector<GroupRun> runs;
  const auto add = [&](int64_t segments, int64_t first_segment, int64_t first_group, int64_t groups,
                       int lanes, bool last) {
    if (segments <= 0 || groups <= 0) return;
    GroupRun run;
    run.segments = {segments, layout.segment_chunks};
    run.groups = {groups, layout.lanes_k};
    run.first_group = first_group;
    run.first_chunk = first_segment * layout.segment_chunks + first_group * layout.lanes_k;
    run.first_col = first_segment * layout.segment_cols + first_group * layout.lanes_k * layout.ChunkCols();
    run.lanes = lanes;
    run.last = last;
    runs.push_back(run);
  };
  const int64_t whole = layout.segments - 1;
  const int64_t full = layout.segment_chunks / layout.lanes_k;
  add(whole, 0, 0, full, layout.lanes_k, false);
  add(whole, 0, full, layout.segment_chunks % layout.lanes_k > 0 ? 1 : 0,
      static_cast<int>(layout.segment_chunks % layout.lanes_k), false);
  const int64_t last_groups = CeilDiv(layout.last_chunks, layout.lanes_k);
  add(1, whole, 0, last_groups - 1, layout.lanes_k, false);
  add(1, whole, last_groups - 1, 1, static_cast<int>(layout.last_chunks - (last_groups - 1) * layout.lanes_k),
      true);
  return runs;
}

StepStart StartOf(const Plan& plan, int step) {
  const WeightLayout& layout = plan.layout;
  if (step >= plan.steps) return {layout.TotalChunks(), layout.cols, layout.segments};
  const int segment = layout.segments > 1 ? step / plan.steps_segment : 0;
  const int64_t chunk =
      static_cast<int64_t>(step - segment * plan.steps_segment) * plan.step_groups * layout.lanes_k;
  return {segment * layout.segment_chunks + chunk, segment * layout.segment_cols + chunk * layout.ChunkCols(),
          segment};
}

int64_t WarpRows(const Plan& plan) { return static_cast<int64_t>(plan.launches[0].grid_x) * plan.warps_n; }

void CodeTraffic(const Plan& plan, Traffic& t) {
  const WeightLayout& layout = plan.layout;
  const int bytes = 4 * layout.vector_words;
  for (const GroupRun& run : GroupRunsOf(layout)) {
    const int lanes = layout.lanes_row * run.lanes;
    const int64_t base = run.first_chunk * ChunkBytes(layout);
    t.GlobalLoad(WarpAccess::Of([&](int lane) { return lane < lanes ? base + int64_t{lane} * bytes : -1; }),
                 bytes,
                 {{layout.row_slots * layout.Planes(), int64_t{lanes} * bytes},
                  {run.groups.count, run.groups.stride * ChunkBytes(layout)},
                  {run.segments.count, run.segments.stride * ChunkBytes(layout)},
                  {layout.row_tiles, 4 * layout.TileWords()},
                  {plan.launches[0].grid_y, 0}});
  }
  CodeTouch(plan, t);
}

void StageTraffic(const Plan& plan, bool async, Traffic& t) {
  const int64_t outputs = plan.launches[0].grid_x;
  const Tiling tokens = TilingOf(plan.m, plan.token_tile);
  const int64_t block_bytes = int64_t{kElementBytes} * plan.token_tile * plan.k;
  // Steps that lie alike in sectors and reach as far are counted together.
  struct Kind {
    int64_t phase, cols, count;
  };
  std::vector<Kind> kinds;
  for (int step = 0; step < plan.steps; ++step) {
    const int64_t col = StartOf(plan, step).col;
    const Kind kind = {col % 64, std::clamp<int64_t>(plan.k - col, 0, plan.x_step_cols), 1};
    const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& other) {
      return other.phase == kind.phase && other.cols == kind.cols;
    });
    if (same == kinds.end()) {
      kinds.push_back(kind);
    } else {
      ++same->count;
    }
  }
  for (const Kind& kind : kinds) {
    if (tokens.full > 0)
      StageLoads(plan, async, kind.phase, kind.cols, plan.token_tile,
                 {{tokens.full, block_bytes}, {outputs, 0}, {kind.count, 0}}, t);
    if (tokens.rest > 0)
      StageLoads(plan, async, kind.phase + tokens.full * plan.token_tile * plan.k, kind.cols, tokens.rest,
                 {{1, 0}, {outputs, 0}, {kind.count, 0}}, t);
  }
  const double copies = static_cast<double>(outputs * plan.launches[0].grid_y) * plan.steps;
  StageWrites(plan, async, copies, t);

  for (int z = 0; z < plan.split; ++z) {
    const ColumnSpan span = StagedBy(plan, z);
    const auto touch = [&](int64_t rows, int64_t first, int64_t blocks) {
      TouchRows(Metric::kLoadSectorsPerBlock, rows, plan.k, first * plan.k + span.begin,
                first * plan.k + span.end, kElementBytes, {{blocks, block_bytes}, {outputs, 0}}, t);
    };
    if (tokens.full > 0) touch(plan.token_tile, 0, tokens.full);
    if (tokens.rest > 0) touch(tokens.rest, tokens.full * plan.token_tile, 1);
  }
  const ByteRange all[] = {{0, int64_t{kElementBytes} * plan.m * plan.k}};
  t.Touch(Metric::kLoadSectorsPerLaunch, all, {});
}

void OutputTouch(const Plan& plan, Traffic& t) {
  const bool parts = plan.split > 1;
  const int64_t bytes = parts ? 4 : kElementBytes;
  const Tiling rows = TilingOf(plan.n, plan.BlockRows());
  const Tiling tokens = TilingOf(plan.m, plan.token_tile);
  const int64_t token_blocks = plan.launches[0].grid_y;
  const auto touch = [&](int64_t first, int64_t count, int64_t blocks) {
    const Loop outputs = {blocks, plan.BlockRows() * bytes};
    const Loop splits = {plan.split, bytes * plan.m * plan.n};
    if (tokens.full > 0)
      TouchRows(Metric::kStoreSectorsPerBlock, plan.token_tile, plan.n, first, first + count, bytes,
                {outputs, {tokens.full, bytes * plan.token_tile * plan.n}, splits}, t);
    const int64_t at = tokens.full * plan.token_tile * plan.n + first;
    if (tokens.rest > 0)
      TouchRows(Metric::kStoreSectorsPerBlock, tokens.rest, plan.n, at, at + count, bytes, {outputs, splits},
                t);
    const auto read = [&](int64_t element_bytes) {
      const ByteRange range[] = {{first * element_bytes, count * element_bytes}};
      t.Touch(Metric::kLoadSectorsPerBlock, range,
              {{blocks, plan.BlockRows() * element_bytes}, {token_blocks, 0}, {plan.split, 0}});
    };
    if (plan.bias && !parts) read(kElementBytes);
    if (ScalesPerOutput(plan) && !UnitOf(plan.format).offset) read(kElementBytes);
  };
  if (rows.full > 0) touch(0, plan.BlockRows(), rows.full);
  if (rows.rest > 0) touch(rows.full * plan.BlockRows(), rows.rest, 1);
  const ByteRange all[] = {{0, bytes * plan.split * plan.m * plan.n}};
  t.Touch(Metric::kStoreSectorsPerLaunch, all, {});
  const ByteRange per_row[] = {{0, int64_t{kElementBytes} * plan.n}};
  if (plan.bias && !parts) t.Touch(Metric::kLoadSectorsPerLaunch, per_row, {});
  if (ScalesPerOutput(plan) && !UnitOf(plan.format).offset)
    t.Touch(Metric::kLoadSectorsPerLaunch, per_row, {});
  if (HasFactor(plan)) {
    t[Metric::kLoadSectorsPerBlock] += static_cast<double>(
        TurnsOf({{plan.launches[0].grid_x, 0}, {plan.launches[0].grid_y, 0}, {plan.launches[0].grid_z, 0}}));
    ++t[Metric::kLoadSectorsPerLaunch];
  }
}

void RowSumTraffic(const Plan& plan, Traffic& t) {
  const WeightLayout& layout = plan.layout;
  const int64_t n = plan.n;
  const int64_t bytes = plan.split > 1 ? 4 : 2;
  const int64_t full_tiles = n / layout.TileRows();
  const auto row_tile = [&](int64_t first, int64_t tiles) {
    for (int slot = 0; slot < layout.row_slots; ++slot) {
      for (int j = 0; j < layout.unit_rows; ++j) {
        const auto rows = [&](int64_t element_bytes) {
          return WarpAccess::Of([&](int lane) -> int64_t {
            const int64_t row =
                first + (slot * layout.lanes_row + lane / layout.lanes_k) * layout.unit_rows + j;
            return lane % layout.lanes_k == 0 && row < n ? row * element_bytes : -1;
          });
        };
        const Loop down = {tiles, layout.TileRows() * bytes};
        t.GlobalStore(rows(bytes), static_cast<int>(bytes),
                      {down, {plan.m, n * bytes}, {plan.split, plan.m * n * bytes}});
        const auto read = [&](int64_t element_bytes) {
          t.GlobalLoad(rows(element_bytes), static_cast<int>(element_bytes),
                       {{tiles, layout.TileRows() * element_bytes}, {plan.m, 0}, {plan.split, 0}});
        };
        if (ScalesPerOutput(plan)) read(UnitOf(plan.format).offset ? 4 : 2);
        if (plan.bias && plan.split == 1) read(2);
        if (HasFactor(plan)) {
          WarpAccess factor = rows(1);
          factor.at.fill(0);
          t.GlobalLoad(factor, 4, {{tiles, 0}, {plan.m, 0}, {plan.split, 0}});
        }
      }
    }
  };
  if (full_tiles > 0) row_tile(0, full_tiles);
  if (full_tiles < layout.row_tiles) row_tile(full_tiles * layout.TileRows(), 1);
}

void SumPartialsTraffic(const Plan& plan, Traffic& t) {
  if (plan.split == 1) return;
  const int64_t outputs = static_cast<int64_t>(plan.m) * plan.n;
  const Tiling warps = TilingOf(outputs, 32);
  const auto sum = [&](int64_t first, int64_t lanes, int64_t count) {
    const auto at = [&](int bytes) {
      return WarpAccess::Of([&](int lane) { return lane < lanes ? (first + lane) * bytes : -1; });
    };
    t.GlobalLoad(at(4), 4, {{count, 128}, {plan.split, 4 * outputs}});
    t.GlobalStore(at(kElementBytes), kElementBytes, {{count, 64}});
    if (!plan.bias) return;
    if (plan.n % 32 == 0) {
      t.GlobalLoad(at(kElementBytes), kElementBytes, {{count, 64}});
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      t.GlobalLoad(WarpAccess::Of([&](int lane) {
                     const int64_t output = first + i * 32 + lane;
                     return lane < lanes ? output % plan.n * kElementBytes : -1;
                   }),
                   kElementBytes, {});
    }
  };
  if (warps.full > 0) sum(0, 32, warps.full);
  if (warps.rest > 0) sum(warps.full * 32, warps.rest, 1);

  const KernelLaunch& launch = plan.launches[1];
  const Tiling blocks = TilingOf(outputs, launch.threads);
  const auto touch = [&](int64_t first, int64_t count, int64_t times) {
    TouchRows(Metric::kLoadSectorsPerBlock, plan.split, outputs, first, first + count, 4,
              {{times, int64_t{4} * launch.threads}}, t);
    const ByteRange out[] = {{kElementBytes * first, kElementBytes * count}};
    t.Touch(Metric::kStoreSectorsPerBlock, out, {{times, int64_t{kElementBytes} * launch.threads}});
    if (!plan.bias) return;
    for (int64_t i = 0; i < times; ++i) {
      const int64_t begin = (first + i * launch.threads) % plan.n;
      const int64_t head = std::min(count, plan.n - begin);
      // From `begin` on, and from the first output again where the block reaches the next token.
      const bool twice = count > head;
      const int64_t wrapped = std::min(count - head, begin);
      const ByteRange range[] = {{0, kElementBytes * wrapped}, {kElementBytes * begin, kElementBytes * head}};
      t.Touch(Metric::kLoadSectorsPerBlock, std::span(range).subspan(twice ? 0 : 1), {});
    }
  };
  if (blocks.full > 0) touch(0, launch.threads, blocks.full);
  if (blocks.rest > 0) touch(blocks.full * launch.threads, blocks.rest, 1);
  const ByteRange partial[] = {{0, 4 * plan.split * outputs}};
  t.Touch(Metric::kLoadSectorsPerLaunch, partial, {});
  const ByteRange out[] = {{0, kElementBytes * outputs}};
  t.Touch(Metric::kStoreSectorsPerLaunch, out, {});
  if (plan.bias) {
    const ByteRange bias[] = {{0, int64_t{kElementBytes} * plan.n}};
    t.Touch(Metric::kLoadSectorsPerLaunch, bias, {});
  }
  t[Metric::kBlocks] += launch.grid_x;
}

}  // namespace vqllm::internal
