// Codes on their way into registers: the constants of the layout, and the walk over steps and groups.
#include <fmt/format.h>

#include "codegen/ops/parts.h"
#include "codegen/text.h"

namespace vqllm::internal {

std::string WeightType(const WeightLayout& layout) {
  return layout.vector_words == 4 ? "uint4" : layout.vector_words == 2 ? "uint2" : "unsigned";
}

std::string LayoutConstants(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  return FillText(
      R"(
    constexpr int kN = $n$;  // outputs, rows of W
    constexpr int kK = $k$;  // inputs, columns of W
    constexpr int kThreads = $threads$;

    // Codes: [row tile][$segment$group of chunks][row slot][plane][row lane][column lane][vector of $vector$ words].
    constexpr int kRowTiles = $tiles$;
    constexpr int kRowSlots = $slots$;  // rows of codes that a lane holds at once
    constexpr int kRowLanes = $lanes_row$;
    constexpr int kColumnLanes = $lanes_k$;
    constexpr int kPlanes = $planes$;  // loads of a chunk
    constexpr int kChunkWords = $words$;  // 32-bit words of a chunk
    constexpr int kPieces = $pieces$;  // of a chunk
    constexpr int kPieceUnits = $units$;
    constexpr int kUnitColumns = $unit_cols$;
    $unit_rows$
    constexpr int kPieceColumns = kPieceUnits * kUnitColumns;
    constexpr int kPairs = $pairs$;  // registers of a decoded unit, two values each
    constexpr int kChunkVectors = kRowSlots * kPlanes * kRowLanes;  // of all rows of a tile
    constexpr int kTileVectors = $tile_vectors$;
  )",
      {{"n", plan.n},
       {"k", plan.k},
       {"threads", plan.Threads()},
       {"segment", layout.segments > 1 ? "segment][" : ""},
       {"vector", layout.vector_words},
       {"tiles", layout.row_tiles},
       {"slots", layout.row_slots},
       {"lanes_row", layout.lanes_row},
       {"lanes_k", layout.lanes_k},
       {"planes", layout.Planes()},
       {"words", layout.chunk_words},
       {"pieces", layout.chunk_pieces},
       {"units", layout.piece_units},
       {"unit_cols", layout.unit_cols},
       {"unit_rows", layout.unit_rows > 1 ? fmt::format("constexpr int kUnitRows = {};", layout.unit_rows)
                                          : std::string()},
       {"pairs", UnitOf(plan.format).Pairs()},
       {"tile_vectors", layout.TileWords() / layout.vector_words}});
}

std::string StepConstants(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  std::string text = FillText(
      R"(
    // The reduction runs in steps of kStepChunks chunks a row.
    constexpr int kSteps = $steps$;
    $block_steps$
    constexpr int kStepGroups = $groups$;
    constexpr int kStepChunks = kStepGroups * kColumnLanes;
    constexpr int kStepColumns = kStepChunks * kPieces * kPieceColumns;
    constexpr int kChunks = $chunks$;  // of a row$segment$
  )",
      {{"steps", plan.steps},
       {"block_steps",
        plan.split > 1
            ? fmt::format("constexpr int kBlockSteps = {};  // of one block, of {} that share outputs",
                          plan.steps_split, plan.split)
            : std::string()},
       {"groups", plan.step_groups},
       {"chunks", layout.segment_chunks},
       {"segment", layout.segments > 1 ? " in a segment, which has a codebook of its own" : ""}});
  if (layout.segments > 1) {
    text += FillText(R"(
      constexpr int kSegments = $segments$;
      constexpr int kLastChunks = $last$;  // of the last segment
      constexpr int kSegmentSteps = $steps$;
      constexpr int kSegmentColumns = $cols$;
    )",
                     {{"segments", layout.segments},
                      {"last", layout.last_chunks},
                      {"steps", plan.steps_segment},
                      {"cols", layout.segment_cols}});
  }
  return text;
}

std::string LoadWords(const Plan& plan, const std::string& at, const std::string& stride,
                      const std::string& guard) {
  const WeightLayout& layout = plan.layout;
  const int vector = layout.vector_words;
  const std::string zero = vector == 1 ? "0u" : vector == 2 ? "make_uint2(0, 0)" : "make_uint4(0, 0, 0, 0)";
  std::string load = fmt::format("__ldcs(at + (r * kPlanes + p) * {})", stride);
  if (!guard.empty()) load = fmt::format("{} ? {} : {}", guard, load, zero);
  std::string unpack;
  if (vector == 1) {
    unpack = fmt::format("words[r][p] = {};\n", load);
  } else {
    unpack = fmt::format("const {} vector = {};\n", WeightType(layout), load);
    for (int w = 0; w < vector; ++w)
      unpack += fmt::format("words[r][{} * p{}] = vector.{};\n", vector,
                            w == 0 ? std::string() : fmt::format(" + {}", w), "xyzw"[w]);
  }
  return FillText(R"(
    unsigned words[kRowSlots][kChunkWords];
    $at$
    #pragma unroll
    for (int r = 0; r < kRowSlots; ++r) {
      #pragma unroll
      for (int p = 0; p < kPlanes; ++p) {
        $unpack$
      }
    }
  )",
                  {{"at", fmt::format("const {}* at = {};\n", WeightType(layout), at)}, {"unpack", unpack}});
}

std::string BeginStep(const Plan& plan, bool column) {
  const bool segmented = plan.layout.segments > 1;
  return FillText(R"(
    $segment$
    const int first_chunk = $chunk$
    $column$
  )",
                  {{"segment", segmented ? "const int segment = step / kSegmentSteps;" : ""},
                   {"chunk", segmented ? "step % kSegmentSteps * kStepChunks;  // of the segment"
                                       : "step * kStepChunks;"},
                   {"column", !column     ? ""
                              : segmented ? "const int first_column = segment * kSegmentColumns + step % "
                                            "kSegmentSteps * kStepColumns;"
                                          : "const int first_column = step * kStepColumns;"}});
}

std::string GroupsOfStep(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  const auto whole = [&](int64_t chunks) {
    return (chunks + layout.lanes_k - 1) / layout.lanes_k % plan.step_groups == 0;
  };
  if (whole(layout.segment_chunks) && whole(layout.last_chunks)) return "kStepGroups";
  const std::string chunks = layout.segments == 1 || layout.last_chunks == layout.segment_chunks
                                 ? "kChunks"
                                 : "(segment + 1 < kSegments ? kChunks : kLastChunks)";
  return fmt::format("min(kStepGroups, ({} - first_chunk + kColumnLanes - 1) / kColumnLanes)", chunks);
}

std::string BlockSteps(const Plan& plan) {
  if (plan.split == 1) return "";
  return "const int first_step = blockIdx.z * kBlockSteps;\n"
         "const int last_step = min(first_step + kBlockSteps, kSteps);\n";
}

std::string LoadGroup(const Plan& plan, const GroupLanes& group) {
  const WeightLayout& layout = plan.layout;
  std::string at = "tile_codes + (";
  if (layout.segments > 1) at += "segment * kChunks + ";
  at += "first_chunk + g * kColumnLanes) * kChunkVectors";
  if (layout.lanes_row == 1) return LoadWords(plan, at + " + column_lane", group.lanes, group.active);
  at += ";\nat += row_lane * " + group.lanes + " + column_lane";
  return LoadWords(plan, at, "kRowLanes * " + group.lanes, group.active);
}

GroupLanes LanesOfGroup(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  GroupLanes group{"", "kColumnLanes", ""};
  std::string active;
  if (plan.ragged) {
    const std::string chunks = layout.segments == 1 || layout.last_chunks == layout.segment_chunks
                                   ? "kChunks"
                                   : "(segment + 1 < kSegments ? kChunks : kLastChunks)";
    group.define =
        fmt::format("const int lanes = min(kColumnLanes, {} - first_chunk - g * kColumnLanes);\n", chunks);
    group.lanes = "lanes";
    active = "column_lane < lanes";
  }
  if (layout.row_tiles % plan.warps_n != 0)
    active += std::string(active.empty() ? "" : " && ") + "tile < kRowTiles";
  if (!active.empty()) {
    group.define += fmt::format("const bool active = {};\n", active);
    group.active = "active";
  }
  return group;
}

std::string LaneConstants(const WeightLayout& layout) {
  if (layout.lanes_row == 1) return "const int column_lane = threadIdx.x % 32;\n";
  return "const int row_lane = threadIdx.x % 32 / kColumnLanes;\n"
         "const int column_lane = threadIdx.x % kColumnLanes;\n";
}

std::string RowOfSlot(const WeightLayout& layout) {
  return layout.lanes_row == 1 ? "first_row + r" : "first_row + r * kRowLanes + row_lane";
}

std::string Unrolled(const char* variable, const std::string& count, int times, const std::string& body) {
  if (times == 1) return body;
  return FillText(R"(
    #pragma unroll
    for (int $i$ = 0; $i$ < $count$; ++$i$) {
      $body$
    }
  )",
                  {{"i", variable}, {"count", count}, {"body", body}});
}

std::string UnitIndex(const WeightLayout& layout) {
  const int fragment = layout.FragmentUnits();
  std::string index = layout.piece_units > 1 ? "p * kPieceUnits" : "p";
  if (layout.piece_units > fragment) index += fragment > 1 ? " + f * kFragmentUnits" : " + f";
  if (fragment > 1) index += " + u";
  return index;
}

std::string UnitColumn(const WeightLayout& layout) {
  const int fragment = layout.FragmentUnits();
  std::string column;
  if (layout.piece_units > fragment) column += " + f * kFragmentColumns";
  if (fragment > 1) column += " + u * kUnitColumns";
  return column;
}

}  // namespace vqllm::internal
