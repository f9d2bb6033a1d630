// Parts of emitted files that several ops share.
#include "codegen/op.h"
#include "codegen/text.h"
#include "vq/base/check.h"
#include "vq/tensor.h"

namespace vqllm::internal {

std::string ElementType(DType dtype) { return dtype == DType::kBF16 ? "__nv_bfloat16" : "__half"; }
std::string RoundCall(DType dtype) {
  return dtype == DType::kBF16 ? "__float2bfloat16_rn" : "__float2half_rn";
}
std::string WeightType(const WeightLayout& layout) {
  return layout.vector_words == 4 ? "uint4" : layout.vector_words == 2 ? "uint2" : "unsigned";
}
bool ScalesPerGroup(const Plan& plan) { return plan.format.scale == ScaleKind::kGroup; }
bool ScalesPerOutput(const Plan& plan) { return plan.format.scale == ScaleKind::kPerOutput; }
bool HasFactor(const Plan& plan) { return plan.format.scale == ScaleKind::kPerTensor; }
bool ScalePerPiece(const Plan& plan) { return plan.format.group % plan.layout.PieceCols() == 0; }

std::string Parameters(const Plan& plan, size_t launch) {
  const std::string element = ElementType(plan.activation);
  const int entry_words = plan.format.kind == FormatKind::kTable ? EntryWords(plan.format.subvector) : 1;
  const std::string entry = entry_words >= 4 ? "uint4" : entry_words == 2 ? "uint2" : "unsigned";
  const bool reads_partial = launch > 0;
  std::string text;
  for (const std::string& name : plan.launches[launch].parameters) {
    std::string type;
    if (name == "codes") type = "const " + WeightType(plan.layout);
    if (name == "codebooks") type = "const " + entry;
    if (name == "scales") type = UnitOf(plan.format).offset ? "const unsigned" : "const __half";
    if (name == "factors") type = "const float";
    if (name == "x" || name == "bias") type = "const " + element;
    if (name == "y" || name == "w") type = element;
    if (name == "partial") type = reads_partial ? "const float" : "float";
    VQLLM_CHECK(!type.empty(), "{}", name);
    text += fmt::format("{}{}* __restrict__ {}", text.empty() ? "" : ", ", type, name);
  }
  return text;
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
    constexpr int kRowSlots = $slots$;      // rows of codes that a lane holds at once
    constexpr int kRowLanes = $lanes_row$;
    constexpr int kColumnLanes = $lanes_k$;
    constexpr int kPlanes = $planes$;        // loads of a chunk
    constexpr int kChunkWords = $words$;    // 32-bit words of a chunk
    constexpr int kPieces = $pieces$;        // of a chunk
    constexpr int kPieceUnits = $units$;
    constexpr int kUnitColumns = $unit_cols$;
    $unit_rows$
    constexpr int kPieceColumns = kPieceUnits * kUnitColumns;
    constexpr int kPairs = $pairs$;         // registers of a decoded unit, two values each
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
    // The reduction runs in steps of kStepChunks chunks a row$per_block$.
    constexpr int kSteps = $steps$;
    constexpr int kBlockSteps = $block_steps$;  // of one block$split$
    constexpr int kStepGroups = $groups$;
    constexpr int kStepChunks = kStepGroups * kColumnLanes;
    constexpr int kChunks = $chunks$;  // of a row$segment$
  )",
      {{"per_block", ""},
       {"steps", plan.steps},
       {"block_steps", plan.steps_split},
       {"split", plan.split > 1 ? fmt::format(", of {} that share outputs", plan.split) : std::string()},
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

std::string CodebookStage(const Plan& plan) {
  if (!HasCodebook(plan.format)) return "";
  bool shared = false;
  for (const StageTier& tier : plan.stages) shared |= tier.shared > 0;
  const int entry_words = plan.format.kind == FormatKind::kTable ? EntryWords(plan.format.subvector) : 1;
  const std::string type = entry_words >= 4 ? "uint4" : entry_words == 2 ? "uint2" : "unsigned";
  std::string arguments = "codebooks";
  if (plan.format.kind == FormatKind::kLattice && plan.format.stages() == 2) arguments += ", factors";
  if (shared) arguments += fmt::format(", reinterpret_cast<{}*>(shared)", type);
  if (plan.segmented) {
    const Scope& scope = plan.format.scope;
    const int across = (plan.k + scope.cols - 1) / scope.cols;
    arguments += scope.kind == ScopeKind::kTile ? fmt::format(", blockIdx.x * {} / {} * {} + segment",
                                                              plan.BlockRows(), scope.rows, across)
                                                : ", segment";
  }
  return fmt::format("LoadCodebook({})", arguments);
}

std::string CodebookIndexExpression(const Plan& plan, const std::string& row, const std::string& col) {
  const Scope& scope = plan.format.scope;
  // Padding lies behind the last row and column; its units read the last codebook.
  const std::string r = fmt::format("min({}, kN - 1)", row);
  const std::string c = fmt::format("min({}, kK - 1)", col);
  switch (scope.kind) {
    case ScopeKind::kTensor:
      return "";
    case ScopeKind::kTile:
      return fmt::format("{} / {} * {} + {} / {}", r, scope.rows, (plan.k + scope.cols - 1) / scope.cols, c,
                         scope.cols);
    case ScopeKind::kInGroup:
      return fmt::format("{} / {}", c, scope.cols);
    case ScopeKind::kHeadChannel:
      return fmt::format("{} / {}", c, plan.format.subvector);
  }
  VQLLM_CHECK(false);
}

std::string ScaleFunction(const Plan& plan) {
  const Format& f = plan.format;
  if (!ScalesPerGroup(plan) && !(f.kind == FormatKind::kInt && UnitOf(f).offset)) return "";
  const bool offset = UnitOf(f).offset;
  std::string column =
      ScalesPerGroup(plan) ? fmt::format(" + min(column, kK - 1) / {}", f.group) : std::string();
  return FillText(R"(
    // The scale$zero$ of weight (row, column); rows and columns of padding read the last one.
    __device__ __forceinline__ $type$ ScaleAt(const $type$* __restrict__ scales, int row$parameter$) {
      return __ldg(scales + min(row, kN - 1) * $groups$$column$);
    }
  )",
                  {{"zero", offset ? " (low half) and 1024 + zero point (high half)" : ""},
                   {"type", offset ? "unsigned" : "__half"},
                   {"parameter", ScalesPerGroup(plan) ? ", int column" : ""},
                   {"groups", ScaleGroups(f, plan.k)},
                   {"column", column}});
}

std::string SumPartialsKernel(const Plan& plan) {
  return FillText(R"(
    // Adds the sums of the $split$ blocks that share an output, in the order of k: the same bits at every run.
    extern "C" __global__ void __launch_bounds__(256) sum_partials($parameters$) {
      const int i = blockIdx.x * 256 + threadIdx.x;
      if (i >= $outputs$) return;
      float sum = $start$;
      for (int s = 0; s < $split$; ++s) sum += partial[s * $outputs$ + i];
      y[i] = $round$(sum);
    }
  )",
                  {{"split", plan.split},
                   {"parameters", Parameters(plan, 1)},
                   {"outputs", static_cast<int64_t>(plan.m) * plan.n},
                   {"start", plan.bias ? (plan.activation == DType::kBF16 ? "__bfloat162float(bias[i % kN])"
                                                                          : "__half2float(bias[i % kN])")
                                       : "0"},
                   {"round", RoundCall(plan.activation)}});
}

}  // namespace vqllm::internal
