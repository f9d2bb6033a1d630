// y = x W^T on fp32 FMA: a lane decodes its chunks of a few rows and multiplies them with staged activations.
#include <fmt/format.h>

#include "codegen/ops/parts.h"
#include "codegen/text.h"

namespace vqllm::internal {
namespace {

std::string Constants(const Plan& plan) {
  const std::string own = FillText(
      R"(
    // Activations in shared memory, pieces kPiecePitch apart so that neighbouring lanes meet different banks.
    $activations$
    $step_pieces$

    static_assert(kFragmentColumns % 4 == 0, "activations are read in vectors of four or eight");
    static_assert(kPieceUnits % kFragmentUnits == 0, "a piece is whole fragments");
    static_assert(kK % $x_vector$ == 0, "a row of x is whole vectors");
  )",
      {{"activations", ActivationConstants(plan)},
       {"step_pieces", plan.ragged ? "constexpr int kStepPieces = kStepChunks * kPieces;" : ""},
       {"x_vector", plan.x_vector}});
  return JoinTexts({LayoutConstants(plan), StepConstants(plan), own});
}

std::string Sums(const Plan& plan) {
  const bool out_axis = plan.layout.unit_rows > 1;
  const std::string of_row =
      FillText(R"(
    const int row = $row$;
    #pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int token = first_token + t;
      float sum = SumLanes(acc[r]$j$[t], kColumnLanes);
      $store$
    }
  )",
               {{"row", out_axis ? fmt::format("({}) * kUnitRows + j", RowOfSlot(plan.layout))
                                 : RowOfSlot(plan.layout)},
                {"j", out_axis ? "[j]" : ""},
                {"store", StoreSum(plan, "column_lane == 0")}});
  const std::string of_unit = FillText(R"(
    #pragma unroll
    for (int j = 0; j < kUnitRows; ++j) {
      $of_row$
    }
  )",
                                       {{"of_row", of_row}});
  return FillText(R"(
    #pragma unroll
    for (int r = 0; r < kRowSlots; ++r) {
      $sums$
    }
  )",
                  {{"sums", out_axis ? of_unit : of_row}});
}

}  // namespace

KernelText EmitFmaKernel(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  const bool bf16_x = plan.activation == DType::kBF16;
  const bool bf16_w = UnitOf(plan.format).bf16;
  KernelText out;
  out.blocks = {"reduce", "pairs"};
  if (!bf16_x || !bf16_w || UnitOf(plan.format).offset) out.blocks.insert("floats_f16");
  if (bf16_x || bf16_w) out.blocks.insert("floats_bf16");
  out.constants = Constants(plan);
  out.functions = JoinTexts({ScaleFunction(plan), StageFunction(plan, false)});

  const std::string load = LoadCodebookCall(plan);
  const GroupLanes group = LanesOfGroup(plan);
  const std::string groups = GroupsOfStep(plan);
  out.kernels =
      FillText(
          R"(
    $head$
      extern __shared__ __align__(16) unsigned char shared[];
      $element$* x_shared = reinterpret_cast<$element$*>(shared$x_offset$);
      $lanes$
      const int tile = blockIdx.x * $warps$ + threadIdx.x / 32;  // a warp works on one row tile
      const int first_row = tile * kRowSlots$row_lanes$;$row_unit$
      const int first_token = blockIdx.y * kTokens;
      const $type$* tile_codes = codes + static_cast<long long>(tile) * kTileVectors;

      // 1. The codebook.
      $codebook$

      float acc[kRowSlots]$unit_rows$[kTokens] = {};
      $block_steps$
      for (int step = $first_step$; step < $last_step$; ++step) {
        // 2. The activations of this step$codebook_too$.
        $step_start$
        __syncthreads();  // all warps are done with the last step's activations$and_codebook$
        $load$
        StageActivations(x, x_shared, first_column, first_token);
        __syncthreads();

        // 3. Codes of all rows, then unit after unit: decode and multiply.
        $groups$
        for (int g = 0; g < $group_count$; ++g) {
          $group_lanes$
          $load_words$
          $products$
        }
      }

      // 4. Sum over the lanes of a row and write.
      $sums$
    }
  )",
          {{"head", KernelHead(plan, 0, fmt::format("kThreads, {}", plan.min_blocks))},
           {"element", ElementType(plan.activation)},
           {"x_offset", plan.codebook_bytes > 0 ? " + kCodebookBytes" : ""},
           {"lanes", LaneConstants(layout)},
           {"warps", plan.warps_n},
           {"row_lanes", layout.lanes_row == 1 ? "" : " * kRowLanes"},
           {"row_unit", layout.unit_rows > 1 ? "  // of units" : ""},
           {"type", WeightType(layout)},
           {"codebook", load.empty()     ? "// There is none."
                        : plan.segmented ? "Codebook book;  // changes with the segment"
                                         : "const Codebook book = " + load + ";"},
           {"unit_rows", layout.unit_rows > 1 ? "[kUnitRows]" : ""},
           {"block_steps", BlockSteps(plan)},
           {"first_step", plan.split > 1 ? "first_step" : "0"},
           {"last_step", plan.split > 1 ? "last_step" : "kSteps"},
           {"codebook_too", plan.segmented ? " and its codebook" : ""},
           {"step_start", BeginStep(plan, true)},
           {"and_codebook", plan.segmented ? " and codebook" : ""},
           {"load", plan.segmented ? "book = " + load + ";" : std::string()},
           {"groups", groups == "kStepGroups" ? std::string() : "const int groups = " + groups + ";"},
           {"group_count", groups == "kStepGroups" ? "kStepGroups" : "groups"},
           {"group_lanes", group.define},
           {"load_words", LoadGroup(plan, group)},
           {"products", FmaProducts(plan)},
           {"sums", Sums(plan)}}) +
      SumPartialsKernel(plan);
  return out;
}

}  // namespace vqllm::internal
