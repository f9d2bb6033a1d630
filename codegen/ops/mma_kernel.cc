// y = x W^T on mma.sync: rows of W are the 16 rows of fragment A, tokens the 8 columns of fragment B.
// Activations come by a pipeline of asynchronous copies; how decoded weights become fragments:
// mma_fragments.cc.
#include <fmt/format.h>

#include "codegen/ops/parts.h"
#include "codegen/text.h"
#include "vq/base/check.h"

namespace vqllm::internal {
namespace {

std::string Constants(const Plan& plan) {
  const bool shared = plan.fusion == Fusion::kShared;
  const std::string own = FillText(
      R"(
    // Activations in shared memory: $slots$ slots of one step each. $pitches$
    // $pitches_end$
    $activations$
    constexpr int kSlots = $slots$;
    constexpr int kSlotValues = kTokens * kTokenPitch;
    constexpr int kWarpsN = $warps_n$;  // warps side by side over outputs
    constexpr int kWarpsK = $warps_k$;  // warps that share outputs, a group of each step each
    constexpr int kRowFragments = $row_fragments$;  // of 16 rows of W, of a warp
    constexpr int kTileRows = 16 * kRowFragments;
    constexpr int kBlockRows = kWarpsN * kTileRows;
    constexpr int kSumPitch = kBlockRows + 4;  // floats from token to token of the sums
    $weights$

    static_assert(kTokens % 8 == 0, "fragment B has eight tokens");
    static_assert(kFragmentColumns % 4 == 0, "a lane gives four columns to an mma");
    static_assert(kPieceUnits % kFragmentUnits == 0, "a piece is whole fragments");
    static_assert(kStepGroups == kWarpsK, "each warp takes one group of a step");
    static_assert(kK % $x_vector$ == 0, "a row of x is whole vectors");
  )",
      {{"slots", plan.x_slots},
       {"pitches", plan.fusion == Fusion::kZeroShuffle ? "Pieces and tokens lie so far apart that the"
                                                       : "Tokens lie an odd number of 16 bytes apart:"},
       {"pitches_end", plan.fusion == Fusion::kZeroShuffle
                           ? "eight lanes of one 16-byte access meet different banks."
                           : "the eight rows of a matrix meet different banks."},
       {"activations", ActivationConstants(plan)},
       {"warps_n", plan.warps_n},
       {"warps_k", plan.warps_k},
       {"row_fragments", plan.layout.row_slots * plan.layout.unit_rows / 2},
       {"weights", shared ? FillText(R"(
                 // A tile of decoded weights of each warp, behind the activations.
                 constexpr int kWeightPitch = kColumnLanes * kPieceColumns + 8;
                 constexpr int kWeightTileValues = kTileRows * kWeightPitch;
               )",
                                     {})
                          : std::string()},
       {"x_vector", plan.x_vector}});
  return JoinTexts({LayoutConstants(plan), StepConstants(plan), own});
}

/// The part of the step loop that is there only where some tile or group is not: a guard.
std::string Present(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  const auto whole = [&](int64_t chunks) { return chunks / layout.lanes_k % plan.step_groups == 0; };
  std::string present = layout.row_tiles % plan.warps_n == 0 ? "" : "tile < kRowTiles";
  if (whole(layout.segment_chunks) && whole(layout.last_chunks)) return present;
  const std::string chunks = layout.segments == 1 || layout.last_chunks == layout.segment_chunks
                                 ? "kChunks"
                                 : "(segment + 1 < kSegments ? kChunks : kLastChunks)";
  return fmt::format("{}first_chunk + warp_k * kColumnLanes < {}", present.empty() ? "" : present + " && ",
                     chunks);
}

std::string ColumnFunction(const Plan& plan) {
  return FillText(
      R"(

    // The first column of a step.
    __device__ __forceinline__ int ColumnOf(int step) {
      return $column$;
    }
  )",
      {{"column", plan.layout.segments > 1
                      ? "step / kSegmentSteps * kSegmentColumns + step % kSegmentSteps * kStepColumns"
                      : "step * kStepColumns"}});
}

/// Where a lane's sums of rows 2t and 2t + 1 belong in the block's rows.
std::string StoreFragmentSums(const Plan& plan) {
  const bool natural = plan.layout.unit_rows == 1 || plan.fusion == Fusion::kShared;
  return FillText(
      R"(
    float* sums = reinterpret_cast<float*>(shared);
    #pragma unroll
    for (int t = 0; t < kRowFragments; ++t) {
      const int row = warp_n * kTileRows + $upper$;
      const int row_below = warp_n * kTileRows + $lower$;
      #pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
        float* to = sums + (warp_k * kTokens + j * 8 + 2 * column_lane) * kSumPitch;
        to[row] = acc[t][j][0];
        to[kSumPitch + row] = acc[t][j][1];
        to[row_below] = acc[t][j][2];
        to[kSumPitch + row_below] = acc[t][j][3];
      }
    }
  )",
      {{"upper", natural ? "16 * t + row_lane" : TileRow(plan, "2 * t")},
       {"lower", natural ? "16 * t + 8 + row_lane" : TileRow(plan, "2 * t + 1")}});
}

}  // namespace

KernelText EmitMmaKernel(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  VQLLM_CHECK(layout.lanes_row == 8 && layout.lanes_k == 4 && layout.row_slots * layout.unit_rows % 2 == 0 &&
              !plan.ragged);
  const bool async = plan.x_vector > 1;
  const bool segmented = layout.segments > 1;
  KernelText out;
  out.blocks = MmaBlocks(plan);
  out.blocks.merge(StageBlocks(plan, true));
  if (UnitOf(plan.format).offset && ScalesPerOutput(plan)) out.blocks.insert("floats_f16");
  out.constants = Constants(plan);
  out.functions =
      JoinTexts({ScaleFunction(plan), StageFunction(plan, true), ColumnFunction(plan), MmaFunctions(plan)});

  const std::string load = LoadCodebookCall(plan);
  const std::string present = Present(plan);
  const std::string guarded = FillText(R"(
    if (present) {
      $products$
    }
  )",
                                       {{"products", MmaProducts(plan)}});
  out.kernels =
      FillText(
          R"(
    $head$
      extern __shared__ __align__(16) unsigned char shared[];
      $element$* x_shared = reinterpret_cast<$element$*>(shared$x_offset$);
      $weight_tile$
      const int lane = threadIdx.x % 32;
      const int row_lane = lane / kColumnLanes;  // g of the mma fragments
      const int column_lane = lane % kColumnLanes;  // q
      const int warp_n = threadIdx.x / 32 % kWarpsN;
      const int warp_k = threadIdx.x / 32 / kWarpsN;
      const int tile = blockIdx.x * kWarpsN + warp_n;
      $first_row$
      const int first_token = blockIdx.y * kTokens;
      const $type$* tile_codes = codes + static_cast<long long>(tile) * kTileVectors + lane;
      const int first_step = $first_step$;
      const int last_step = $last_step$;

      // 1. Start the copies of the first steps$meanwhile$.
      #pragma unroll
      for (int s = 0; s < kSlots - 1; ++s) {
        if (first_step + s < last_step) {
          StageActivations(x, x_shared + s * kSlotValues, ColumnOf(first_step + s), first_token);
        }
        $commit$
      }
      $codebook$

      float acc[kRowFragments][kTokens / 8][4] = {};
      for (int step = first_step; step < last_step; ++step) {
        // 2. Codes of this step, straight into registers.
        $step_start$
        $present$
        $load_words$

        // 3. Wait for this step's activations; then refill the slot that everybody has left.
        $wait$
        __syncthreads();
        $reload$
        const int next = step + kSlots - 1;
        if (next < last_step) {
          $element$* free_slot = x_shared + (next - first_step) % kSlots * kSlotValues;
          StageActivations(x, free_slot, ColumnOf(next), first_token);
        }
        $commit$

        // 4. Decode into fragments A, read fragments B, multiply.
        const $element$* x_now = x_shared + (step - first_step) % kSlots * kSlotValues;
        $products$
      }

      // 5. Bring the sums together in shared memory and write rows of outputs.
      $drain$
      __syncthreads();
      $store_sums$
      __syncthreads();
      for (int i = threadIdx.x; i < kTokens * kBlockRows; i += kThreads) {
        const int row = blockIdx.x * kBlockRows + i % kBlockRows;
        const int token = first_token + i / kBlockRows;
        $sum$
        $store$
      }
    }
  )",
          {{"head", KernelHead(plan, 0, fmt::format("kThreads, {}", plan.min_blocks))},
           {"element", ElementType(plan.activation)},
           {"x_offset", plan.codebook_bytes > 0 ? " + kCodebookBytes" : ""},
           {"weight_tile",
            plan.fusion == Fusion::kShared
                ? fmt::format("{}* weight_tile = x_shared + kSlots * kSlotValues + threadIdx.x / 32 * "
                              "kWeightTileValues;",
                              ElementType(plan.activation))
                : std::string()},
           {"first_row", ScalesPerGroup(plan) || UnitOf(plan.format).offset || IndexesCodebooks(plan)
                             ? "const int first_row = tile * kRowSlots * kRowLanes;"
                             : ""},
           {"type", WeightType(layout)},
           {"first_step", plan.split > 1 ? "blockIdx.z * kBlockSteps" : "0"},
           {"last_step", plan.split > 1 ? "min(first_step + kBlockSteps, kSteps)" : "kSteps"},
           {"meanwhile", load.empty() || plan.segmented ? "" : "; meanwhile fetch the codebook"},
           {"commit", async ? "CommitCopies();" : ""},
           {"codebook", load.empty()     ? ""
                        : plan.segmented ? "Codebook book;  // changes with the segment"
                                         : "const Codebook book = " + load + ";"},
           {"step_start", BeginStep(plan, ScalesPerGroup(plan) || IndexesCodebooks(plan))},
           {"present", present.empty() ? std::string() : "const bool present = " + present + ";"},
           {"load_words",
            LoadWords(plan,
                      fmt::format("tile_codes + ({}first_chunk + warp_k * kColumnLanes) * kChunkVectors",
                                  segmented ? "segment * kChunks + " : ""),
                      "32", present.empty() ? "" : "present")},
           {"wait", async ? "WaitCopies(kSlots - 2);" : ""},
           {"reload", plan.segmented
                          ? FillText(R"(
                             if (step == first_step$new_segment$) {
                               book = $load$;
                               __syncthreads();
                             }
                           )",
                                     {{"new_segment", segmented ? " || step % kSegmentSteps == 0" : ""},
                                      {"load", load}})
                          : std::string()},
           {"products", present.empty() ? MmaProducts(plan) : guarded},
           {"drain", async ? "WaitCopies(0);" : ""},
           {"store_sums", StoreFragmentSums(plan)},
           {"sum", plan.warps_k == 1
                       ? "float sum = sums[i / kBlockRows * kSumPitch + i % kBlockRows];\n"
                       : "float sum = 0;\nfor (int s = 0; s < kWarpsK; ++s) {\n"
                         "  sum += sums[(s * kTokens + i / kBlockRows) * kSumPitch + i % kBlockRows];\n}\n"},
           {"store", StoreSum(plan, "")}}) +
      SumPartialsKernel(plan);
  return out;
}

}  // namespace vqllm::internal
