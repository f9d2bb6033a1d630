// What the lookups of DecodeUnit ask of memory: expectations over codes drawn evenly.
#include <algorithm>
#include <map>

#include "codegen/lookup_model.h"
#include "codegen/ops/parts.h"
#include "codegen/ops/traffic_parts.h"
#include "vq/base/math.h"
#include "vq/tensor.h"

namespace vqllm::internal {
namespace {

int64_t RowUnits(const Plan& plan) { return CeilDiv(plan.n, plan.layout.unit_rows); }
int64_t ColumnUnits(const Plan& plan) { return CeilDiv(plan.k, plan.layout.unit_cols); }

/// Lanes of a warp whose column lane is in `cols` and row lane in `rows`.
uint32_t LanesOf(const WeightLayout& layout, uint32_t cols, uint32_t rows) {
  uint32_t mask = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (cols >> lane % layout.lanes_k & 1 && rows >> lane / layout.lanes_k & 1) mask |= 1u << lane;
  }
  return mask;
}

/// A set of lanes and how many calls have it.
using LaneSets = std::vector<std::pair<uint32_t, int64_t>>;
void AddSet(LaneSets& sets, uint32_t mask, int64_t count) {
  for (auto& [known, times] : sets) {
    if (known == mask) {
      times += count;
      return;
    }
  }
  sets.emplace_back(mask, count);
}

/// Of the units of a row's chunks, which column lanes hold weights of the matrix.
LaneSets ColumnSets(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  LaneSets sets;
  for (const GroupRun& run : GroupRunsOf(layout)) {
    const uint32_t lanes = run.lanes == 32 ? ~0u : (1u << run.lanes) - 1;
    if (!run.last) {
      AddSet(sets, lanes, run.Groups() * layout.ChunkUnits());
      continue;
    }
    for (int unit = 0; unit < layout.ChunkUnits(); ++unit) {
      uint32_t inside = 0;
      for (int lane = 0; lane < run.lanes; ++lane) {
        const int64_t piece = unit / layout.piece_units * run.lanes + lane;
        const int64_t at =
            run.first_col / layout.unit_cols + piece * layout.piece_units + unit % layout.piece_units;
        if (at < ColumnUnits(plan)) inside |= 1u << lane;
      }
      AddSet(sets, inside, 1);
    }
  }
  return sets;
}

/// Of the row slots of all warps, which row lanes hold rows of the matrix.
LaneSets RowSets(const Plan& plan, bool idle) {
  const WeightLayout& layout = plan.layout;
  LaneSets sets;
  const int64_t full = RowUnits(plan) / layout.TileUnitRows();
  const uint32_t all = layout.lanes_row == 32 ? ~0u : (1u << layout.lanes_row) - 1;
  AddSet(sets, all, full * layout.row_slots);
  if (full < layout.row_tiles) {
    for (int slot = 0; slot < layout.row_slots; ++slot) {
      const int64_t left = RowUnits(plan) - full * layout.TileUnitRows() - slot * layout.lanes_row;
      const int64_t rows = std::clamp<int64_t>(left, 0, layout.lanes_row);
      AddSet(sets, rows == 32 ? ~0u : (1u << rows) - 1, 1);
    }
  }
  if (idle) AddSet(sets, 0, (WarpRows(plan) - layout.row_tiles) * layout.row_slots);
  return sets;
}

/// Lookups of `times` calls of DecodeUnit by one warp, in one codebook of each stage; or in tables of
/// products, of each token.
void AddLookup(const Plan& plan, const LookupLanes& lanes, double times, Traffic& t) {
  EntryShape entry = EntryShapeOf(plan.format);
  const bool products = plan.compute == Compute::kTable;
  if (products) entry = {4, 4, 1};
  const double loads = times * entry.used_vectors * (products ? plan.token_tile : 1);
  for (int stage = 0; stage < plan.format.stages(); ++stage) {
    StageTier tier = TierOf(plan, stage);
    if (products) tier.shared = tier.entries;
    const LookupCost cost = ExpectedLookup(tier, entry.vector_bytes, entry.bytes, lanes);
    t[Metric::kSharedLoadRequests] += loads * cost.shared_requests;
    t[Metric::kSharedLoadWavefronts] += loads * cost.wavefronts;
    t[Metric::kSharedLoadWavefrontsIdeal] += loads * cost.ideal;
    t[Metric::kGlobalLoadRequests] += loads * cost.global_requests;
    t[Metric::kGlobalLoadSectors] += loads * cost.sectors;
    t.global_lines += loads * cost.lines;
  }
}

/// Lanes along one axis of a warp that look up in one codebook: `random` real codes, `zero` padding.
struct BookLanes {
  int64_t book = 0;
  int random = 0;
  int zero = 0;
  auto operator<=>(const BookLanes&) const = default;
};
/// The codebooks that lanes side by side meet, and how many calls meet as many.
using BookSets = std::map<std::vector<BookLanes>, int64_t>;

/// `lanes` elements from `first` on, `stride` apart and behind `end` padding; `part` elements have a
/// codebook.
std::vector<BookLanes> BooksOfLanes(int64_t first, int lanes, int64_t stride, int64_t end, int64_t part) {
  std::vector<BookLanes> books;
  for (int lane = 0; lane < lanes; ++lane) {
    const int64_t at = first + lane * stride;
    const int64_t book = std::min(at, end - 1) / part;
    if (books.empty() || books.back().book != book) books.push_back({book, 0, 0});
    ++(at < end ? books.back().random : books.back().zero);
  }
  for (BookLanes& lanes_of : books) lanes_of.book = 0;  // which ones does not matter
  return books;
}

/// Lookups where the codebook changes within what a warp decodes: entries stay in global memory.
void IndexedLookups(const Plan& plan, bool idle, Traffic& t) {
  const WeightLayout& layout = plan.layout;
  const Format& f = plan.format;
  const int64_t whole = std::max(plan.n, plan.k) + int64_t{1};
  const int64_t row_part = f.scope.kind == ScopeKind::kTile ? f.scope.rows : whole;
  const int64_t col_part = f.scope.kind == ScopeKind::kHeadChannel ? f.subvector : f.scope.cols;
  BookSets cols;
  for (const GroupRun& run : GroupRunsOf(layout)) {
    for (int64_t g = 0; g < run.groups.count; ++g) {
      for (int unit = 0; unit < layout.ChunkUnits(); ++unit) {
        const int64_t first = run.first_col + g * run.groups.stride * layout.ChunkCols() +
                              unit / layout.piece_units * run.lanes * layout.PieceCols() +
                              unit % layout.piece_units * layout.unit_cols;
        std::vector<BookLanes> books = BooksOfLanes(first, run.lanes, layout.PieceCols(), plan.k, col_part);
        if (run.lanes < layout.lanes_k) books.back().zero += layout.lanes_k - run.lanes;
        ++cols[books];
      }
    }
  }
  BookSets rows;
  const int64_t tiles = idle ? WarpRows(plan) : layout.row_tiles;
  for (int64_t slot = 0; slot < tiles * layout.row_slots; ++slot)
    ++rows[BooksOfLanes(slot * layout.lanes_row * layout.unit_rows, layout.lanes_row, layout.unit_rows,
                        plan.n, row_part)];
  const EntryShape entry = EntryShapeOf(f);
  for (const auto& [col_books, units] : cols) {
    for (const auto& [row_books, slots] : rows) {
      const double loads = static_cast<double>(units * slots * plan.launches[0].grid_y) * entry.used_vectors;
      for (int stage = 0; stage < f.stages(); ++stage) {
        t[Metric::kGlobalLoadRequests] += loads;
        for (const BookLanes& r : row_books) {
          for (const BookLanes& c : col_books) {
            const int random = r.random * c.random;
            const int zero = (r.random + r.zero) * (c.random + c.zero) - random;
            const auto mask = [](int lanes) { return lanes == 32 ? ~0u : (1u << lanes) - 1; };
            const LookupCost cost = ExpectedLookup(TierOf(plan, stage), entry.vector_bytes, entry.bytes,
                                                   {mask(random), mask(zero)});
            t[Metric::kGlobalLoadSectors] += loads * cost.sectors;
            t.global_lines += loads * cost.lines;
          }
        }
      }
    }
  }
}

}  // namespace

EntryShape EntryShapeOf(const Format& f) {
  EntryShape shape;
  if (f.kind == FormatKind::kTable) {
    shape.bytes = 4 * EntryWords(f.subvector);
    shape.vector_bytes = std::min(16, shape.bytes);
    shape.used_vectors = static_cast<int>(CeilDiv(4 * ((f.subvector + 1) / 2), shape.vector_bytes));
  }
  return shape;
}

const StageTier& TierOf(const Plan& plan, int stage) {
  return plan.stages[plan.format.kind == FormatKind::kLattice ? 0 : static_cast<size_t>(stage)];
}

void DecodeTraffic(const Plan& plan, bool idle, Traffic& t) {
  if (!HasCodebook(plan.format)) return;
  if (IndexesCodebooks(plan)) return IndexedLookups(plan, idle, t);
  const LaneSets rows = RowSets(plan, idle);
  for (const auto& [cols, units] : ColumnSets(plan)) {
    for (const auto& [row_lanes, slots] : rows) {
      const uint32_t random = LanesOf(plan.layout, cols, row_lanes);
      AddLookup(plan, {random, ~random}, static_cast<double>(units * slots * plan.launches[0].grid_y), t);
    }
  }
}

}  // namespace vqllm::internal
