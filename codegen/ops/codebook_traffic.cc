// What it takes to bring codebooks to where they are looked up, and which of their sectors lookups touch.
#include <algorithm>

#include "codegen/lookup_model.h"
#include "codegen/ops/parts.h"
#include "codegen/ops/traffic_parts.h"
#include "vq/base/math.h"
#include "vq/tensor.h"

namespace vqllm::internal {
namespace {

/// One stage's copy into shared memory and registers by one block: loads `base` bytes into the codebooks.
void StageCodebook(const Plan& plan, const StageTier& tier, int64_t base, int64_t times, Traffic& t) {
  const EntryShape entry = EntryShapeOf(plan.format);
  const int bytes = entry.vector_bytes;
  const int vectors = entry.Vectors();
  const int64_t count = int64_t{tier.shared} * vectors * tier.replicas;
  const auto source = [&](int64_t i) {
    return i / tier.replicas % tier.shared * vectors + i / (int64_t{tier.replicas} * tier.shared);
  };
  // Where a warp's copies never straddle planes and repeat each entry as often, requests are alike.
  const bool alike = count % 32 == 0 && int64_t{tier.replicas} * tier.shared % 32 == 0;
  for (int64_t first = 0; first < count; first += alike ? int64_t{tier.replicas} * tier.shared : 32) {
    const WarpAccess from = WarpAccess::Of(
        [&](int lane) { return first + lane < count ? base + source(first + lane) * bytes : -1; });
    const WarpAccess to =
        WarpAccess::Of([&](int lane) { return first + lane < count ? (first + lane) * bytes : -1; });
    const int64_t requests = alike ? int64_t{tier.replicas} * tier.shared / 32 : 1;
    t.GlobalLoad(from, bytes, {{requests, int64_t{32} / tier.replicas * vectors * bytes}, {times, 0}});
    t.SharedStore(to, bytes, static_cast<double>(requests * times));
  }
  for (int vector = 0; tier.held > 0 && vector < entry.used_vectors; ++vector) {
    t.GlobalLoad(WarpAccess::Of([&](int lane) {
                   return base + (int64_t{std::min(lane, tier.held - 1)} * vectors + vector) * bytes;
                 }),
                 bytes, {{times * plan.Threads() / 32, 0}});
  }
}

/// Lookups in one codebook, and how often there are as many.
struct BlockBook {
  int64_t lookups = 0;
  int64_t times = 0;
};

/// Ranges of an axis, in units, and how many there are alike.
using Parts = std::vector<std::pair<int64_t, int64_t>>;

/// Cuts [0, total) at multiples of `part` and at the ends of the blocks: `blocks` at multiples of `block`.
/// Both may be larger than the axis.
Parts PartsOf(int64_t total, int64_t part, int64_t block, int64_t unit) {
  Parts parts;
  for (int64_t begin = 0; begin < total;) {
    const int64_t end = std::min({total, (begin / part + 1) * part, (begin / block + 1) * block});
    const int64_t size = CeilDiv(end - begin, unit);
    const auto same =
        std::find_if(parts.begin(), parts.end(), [&](const auto& p) { return p.first == size; });
    if (same == parts.end()) {
      parts.emplace_back(size, 1);
    } else {
      ++same->second;
    }
    begin = end;
  }
  return parts;
}

/// Lookups that the codes make in each codebook: of the whole launch, or of each block (token blocks repeat
/// them).
std::vector<BlockBook> BooksOf(const Plan& plan, bool blocks) {
  const Format& f = plan.format;
  const int64_t whole = std::max(plan.n, plan.k) + int64_t{1};
  int64_t rows = whole;
  int64_t cols = whole;
  if (f.kind == FormatKind::kTable) {
    if (f.scope.kind == ScopeKind::kTile) rows = f.scope.rows;
    if (f.scope.kind == ScopeKind::kTile || f.scope.kind == ScopeKind::kInGroup) cols = f.scope.cols;
    if (f.scope.kind == ScopeKind::kHeadChannel) cols = f.subvector;
  }
  const Parts bands = PartsOf(plan.n, rows, blocks ? plan.BlockRows() : whole, plan.layout.unit_rows);
  Parts across;
  for (int z = 0; z < (blocks ? plan.split : 1); ++z) {
    const int64_t begin = blocks ? StartOf(plan, z * plan.steps_split).col : 0;
    const int64_t end =
        blocks
            ? std::min<int64_t>(StartOf(plan, std::min((z + 1) * plan.steps_split, plan.steps)).col, plan.k)
            : plan.k;
    for (int64_t at = begin; at < end;) {
      const int64_t next = std::min(end, (at / cols + 1) * cols);
      across.emplace_back(CeilDiv(next - at, plan.layout.unit_cols), 1);
      at = next;
    }
  }
  std::vector<BlockBook> books;
  for (const auto& [row_units, row_parts] : bands) {
    for (const auto& [col_units, col_parts] : across)
      books.push_back({row_units * col_units, row_parts * col_parts});
  }
  return books;
}

}  // namespace

void CodebookTraffic(const Plan& plan, CodebookCalls calls, Traffic& t) {
  const Format& f = plan.format;
  if (!HasCodebook(f)) return;
  const bool table = f.kind == FormatKind::kTable;
  const KernelLaunch& launch = plan.launches[0];
  const int64_t books = table ? CodebookCount(f, plan.n, plan.k) : 1;
  const int64_t across = table && f.scope.kind == ScopeKind::kTile ? CeilDiv(plan.k, f.scope.cols) : 0;
  const int64_t band_blocks = across > 0 ? std::max<int64_t>(1, f.scope.rows / plan.BlockRows()) : 1;

  // Calls and codebooks of the blocks of each part of the reduction.
  struct Visit {
    int64_t book = 0;  // of the first band
    int64_t calls = 0;
  };
  std::vector<std::vector<Visit>> visits(static_cast<size_t>(plan.split));
  for (int z = 0; z < plan.split; ++z) {
    std::vector<Visit>& of_block = visits[static_cast<size_t>(z)];
    if (!plan.segmented) {
      of_block.push_back({0, 1});
      continue;
    }
    const int end = std::min((z + 1) * plan.steps_split, plan.steps);
    for (int step = z * plan.steps_split; step < end; ++step) {
      const int64_t segment = StartOf(plan, step).segment;
      if (of_block.empty() || of_block.back().book != segment) of_block.push_back({segment, 0});
      if (calls == CodebookCalls::kStep || of_block.back().calls == 0) ++of_block.back().calls;
    }
  }

  const int64_t entry_bytes = EntryShapeOf(f).bytes;
  int64_t stage_at = 0;
  for (int stage = 0; stage < (table ? f.stages() : 1); ++stage) {
    const StageTier& tier = TierOf(plan, stage);
    const int64_t book_bytes = tier.entries * entry_bytes;
    const int64_t staged = std::max(tier.shared, tier.held) * entry_bytes;
    const int64_t outside = std::max(tier.shared, tier.held);
    const int64_t group = std::max<int64_t>(1, kSectorBytes / entry_bytes);
    const double sectors_entry = std::max<double>(1, static_cast<double>(entry_bytes) / kSectorBytes);
    const double stages = table ? 1 : f.stages();
    for (const std::vector<Visit>& of_block : visits) {
      for (const Visit& visit : of_block) {
        // Bands of blocks down the rows read codebooks `across` further; others the same.
        for (int64_t block = 0; block < launch.grid_x; block += band_blocks) {
          const int64_t band = block / band_blocks;
          const bool aligned = book_bytes % 128 == 0;
          const int64_t alike =
              across == 0 || aligned ? launch.grid_x : std::min(band_blocks, launch.grid_x - block);
          const int64_t base = stage_at + (visit.book + band * across) * book_bytes;
          if (staged > 0) {
            StageCodebook(plan, tier, base, visit.calls * alike * launch.grid_y, t);
            const ByteRange range[] = {{base, staged}};
            t.Touch(Metric::kLoadSectorsPerBlock, range, {{alike, 0}, {launch.grid_y, 0}});
          }
          if (alike == launch.grid_x) break;
        }
      }
    }
    if (outside < tier.entries) {
      for (const BlockBook& part : BooksOf(plan, true))
        t[Metric::kLoadSectorsPerBlock] += static_cast<double>(part.times * launch.grid_y) * sectors_entry *
                                           ExpectedDistinct(outside, tier.entries, tier.entries, group,
                                                            static_cast<double>(part.lookups) * stages);
    }
    for (int64_t book = 0; book < books; ++book) {
      if (staged <= 0) break;
      const bool aligned = book_bytes % kSectorBytes == 0;
      const ByteRange range[] = {{stage_at + book * book_bytes, staged}};
      t.Touch(Metric::kLoadSectorsPerLaunch, range, {{aligned ? books : 1, 0}});
      if (aligned) break;
    }
    if (outside < tier.entries) {
      for (const BlockBook& part : BooksOf(plan, false))
        t[Metric::kLoadSectorsPerLaunch] += static_cast<double>(part.times) * sectors_entry *
                                            ExpectedDistinct(outside, tier.entries, tier.entries, group,
                                                             static_cast<double>(part.lookups) * stages);
    }
    stage_at += books * book_bytes;
  }
  if (f.kind == FormatKind::kLattice && f.stages() == 2) {
    // factors[1], which scales the second stage.
    t.GlobalLoad(WarpAccess::Of([](int) { return 4; }), 4,
                 {{int64_t{launch.grid_x} * launch.grid_y * launch.grid_z * plan.Threads() / 32, 0}});
  }
}

}  // namespace vqllm::internal
