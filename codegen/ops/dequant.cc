// W' [n, k] from codes: a lane decodes its chunks and writes them out, scaled.
#include <fmt/format.h>

#include "codegen/ops/parts.h"
#include "codegen/text.h"

namespace vqllm::internal {
namespace {

/// Stores the weights of a unit, scaled in fp32 and rounded once; `active`: an expression, or empty.
std::string StoreUnit(const Plan& plan, const std::string& active) {
  const WeightLayout& layout = plan.layout;
  const bool bf16 = plan.activation == DType::kBF16;
  const std::string floats = PairFloats(UnitOf(plan.format).bf16);
  const std::string scaled = plan.format.scale == ScaleKind::kNone ? "" : "scale * ";
  const std::string guard = active.empty() ? "" : active + " && ";
  if (layout.unit_rows > 1) {
    return FillText(R"(
      #pragma unroll
      for (int j = 0; j < kUnitRows; ++j) {
        const float2 two = $floats$(pairs[j / 2]);
        if ($guard$row + j < kN && column < kK) {
          $scale$
          w[(row + j) * static_cast<long long>(kK) + column] = $round$($scaled$(j % 2 == 0 ? two.x : two.y));
        }
      }
    )",
                    {{"floats", floats},
                     {"guard", guard},
                     {"scale", ScalesPerGroup(plan)
                                   ? "const float scale = __half2float(ScaleAt(scales, row + j, column));"
                               : ScalesPerOutput(plan) ? "const float scale = __half2float(scales[row + j]);"
                                                       : ""},
                     {"round", RoundCall(plan.activation)},
                     {"scaled", scaled}});
  }
  if (layout.unit_cols % 2 == 0 && plan.k % 2 == 0) {
    return FillText(
        R"(
      #pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float2 two = $floats$(pairs[i]);
        if ($guard$row < kN && column + 2 * i < kK) {
          *reinterpret_cast<$pair$*>(w + row * static_cast<long long>(kK) + column + 2 * i) =
              $join$($scaled$two.x, $scaled$two.y);
        }
      }
    )",
        {{"floats", floats},
         {"guard", guard},
         {"pair", bf16 ? "__nv_bfloat162" : "__half2"},
         {"join", bf16 ? "__floats2bfloat162_rn" : "__floats2half2_rn"},
         {"scaled", scaled}});
  }
  return FillText(
      R"(
      #pragma unroll
      for (int e = 0; e < kUnitColumns; ++e) {
        const float2 two = $floats$(pairs[e / 2]);
        if ($guard$row < kN && column + e < kK) {
          w[row * static_cast<long long>(kK) + column + e] = $round$($scaled$(e % 2 == 0 ? two.x : two.y));
        }
      }
    )",
      {{"floats", floats}, {"guard", guard}, {"round", RoundCall(plan.activation)}, {"scaled", scaled}});
}

/// Statements that define the `scale` of a unit, and the `offset` where units subtract one.
std::string ReadScale(const Plan& plan) {
  if (plan.layout.unit_rows > 1) return "";
  if (HasFactor(plan)) return "const float scale = factors[0];";
  if (UnitOf(plan.format).offset) {
    return FillText(R"(
      const unsigned scale_zero = $call$;
      const float scale = HalfFloats(scale_zero).x;
      const unsigned offset = __byte_perm(scale_zero, scale_zero, 0x3232);
    )",
                    {{"call", ScaleCall(plan, "row", "column")}});
  }
  if (ScalesPerGroup(plan)) return "const float scale = __half2float(ScaleAt(scales, row, column));";
  if (ScalesPerOutput(plan)) return "const float scale = __half2float(scales[min(row, kN - 1)]);";
  return "";
}

}  // namespace

KernelText EmitDequant(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  KernelText out;
  out.blocks = {"pairs", UnitOf(plan.format).bf16 ? "floats_bf16" : "floats_f16"};
  out.constants = JoinTexts({LayoutConstants(plan), StepConstants(plan)});
  out.functions = ScaleFunction(plan);
  const std::string load = LoadCodebookCall(plan);
  const bool shared = plan.codebook_bytes > 0;
  const GroupLanes group = LanesOfGroup(plan);
  out.kernels = FillText(
      R"(
    $head$
      $shared$
      $lanes$
      const int tile = blockIdx.x * $warps$ + threadIdx.x / 32;  // a warp works on one row tile
      const int first_row = tile * kRowSlots$row_lanes$;$row_unit$
      const $type$* tile_codes = codes + static_cast<long long>(tile) * kTileVectors;

      // 1. The codebook.
      $codebook$

      const int first_step = $first_step$;
      const int last_step = $last_step$;
      for (int step = first_step; step < last_step; ++step) {
        $step_start$
        $reload$
        for (int g = 0; g < kStepGroups; ++g) {
          // 2. Codes of all rows; lanes behind the last chunk read none.
          $group_lanes$
          $load_words$

          // 3. Decode and write unit after unit.
          #pragma unroll
          for (int r = 0; r < kRowSlots; ++r) {
            const int row = $row$;
            #pragma unroll
            for (int u = 0; u < kPieces * kPieceUnits; ++u) {
              const int piece = g * kColumnLanes * kPieces + u / kPieceUnits * $lane_count$ + column_lane;
              const int column = first_column + piece * kPieceColumns + u % kPieceUnits * kUnitColumns;
              $scale$
              unsigned pairs[kPairs];
              DecodeUnit(words[r], u, $arguments$pairs);
              $store$
            }
          }
        }
      }
    }
  )",
      {{"head", KernelHead(plan, 0, fmt::format("kThreads, {}", plan.min_blocks))},
       {"shared", shared ? "extern __shared__ __align__(16) unsigned char shared[];" : ""},
       {"lanes", LaneConstants(layout)},
       {"warps", plan.warps_n},
       {"row_lanes", layout.lanes_row == 1 ? "" : " * kRowLanes"},
       {"row_unit", layout.unit_rows > 1 ? "  // of units" : ""},
       {"type", WeightType(layout)},
       {"codebook", load.empty() ? "// There is none."
                    : plan.segmented
                        ? "Codebook book;  // changes with the segment"
                        : "const Codebook book = " + load + (shared ? ";\n__syncthreads();" : ";")},
       {"first_step", plan.split > 1 ? "blockIdx.z * kBlockSteps" : "0"},
       {"last_step", plan.split > 1 ? "min(first_step + kBlockSteps, kSteps)" : "kSteps"},
       {"step_start", BeginStep(plan, true)},
       {"reload", !plan.segmented ? std::string()
                  : shared ? "__syncthreads();  // all warps are done with the last codebook\nbook = " +
                                 load + ";\n__syncthreads();"
                           : "book = " + load + ";"},
       {"group_lanes", group.define},
       {"load_words", LoadGroup(plan, group)},
       {"row", layout.unit_rows > 1 ? fmt::format("({}) * kUnitRows", RowOfSlot(layout)) : RowOfSlot(layout)},
       {"lane_count", group.lanes},
       {"scale", ReadScale(plan)},
       {"arguments", DecodeArguments(plan, CodebookIndex(plan, "row", "column"), "offset")},
       {"store", StoreUnit(plan, group.active)}});
  return out;
}

}  // namespace vqllm::internal
