// W' [n, k] from codes: a lane decodes its chunks and writes them out, scaled.
#include "codegen/op.h"
#include "codegen/text.h"
#include "vq/base/error.h"

namespace vqllm::internal {
namespace {

/// Two weights of a pair as fp32, scaled and rounded once, stored. `wide`: eight at a time.
std::string StoreUnit(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  const std::string floats = UnitOf(plan.format).bf16 ? "Bfloat16Floats" : "HalfFloats";
  const std::string round = RoundCall(plan.activation);
  const bool scaled = ScalesPerGroup(plan) || ScalesPerOutput(plan) || HasFactor(plan);
  if (layout.unit_rows > 1) {
    return FillText(R"(
      #pragma unroll
      for (int j = 0; j < kUnitRows; ++j) {
        const float2 two = $floats$(pairs[j / 2]);
        if (active && row + j < kN && column < kK) {
          $scale$
          w[(row + j) * static_cast<long long>(kK) + column] = $round$($scaled$(j % 2 == 0 ? two.x : two.y));
        }
      }
    )",
                    {{"floats", floats},
                     {"scale", ScalesPerGroup(plan)
                                   ? "const float scale = __half2float(ScaleAt(scales, row + j, column));"
                               : ScalesPerOutput(plan) ? "const float scale = __half2float(scales[row + j]);"
                                                       : ""},
                     {"round", round},
                     {"scaled", scaled ? "scale * " : ""}});
  }
  const bool paired = layout.unit_cols % 2 == 0 && plan.k % 2 == 0;
  if (paired) {
    return FillText(
        R"(
      #pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float2 two = $floats$(pairs[i]);
        if (active && row < kN && column + 2 * i < kK) {
          *reinterpret_cast<$pair$*>(w + row * static_cast<long long>(kK) + column + 2 * i) =
              $join$($scaled$two.x, $scaled$two.y);
        }
      }
    )",
        {{"floats", floats},
         {"pair", plan.activation == DType::kBF16 ? "__nv_bfloat162" : "__half2"},
         {"join", plan.activation == DType::kBF16 ? "__floats2bfloat162_rn" : "__floats2half2_rn"},
         {"scaled", scaled ? "scale * " : ""}});
  }
  return FillText(R"(
      #pragma unroll
      for (int e = 0; e < kUnitColumns; ++e) {
        const float2 two = $floats$(pairs[e / 2]);
        if (active && row < kN && column + e < kK) {
          w[row * static_cast<long long>(kK) + column + e] = $round$($scaled$(e % 2 == 0 ? two.x : two.y));
        }
      }
    )",
                  {{"floats", floats}, {"round", round}, {"scaled", scaled ? "scale * " : ""}});
}

std::string ReadScale(const Plan& plan) {
  if (plan.layout.unit_rows > 1) return "";
  if (HasFactor(plan)) return "const float scale = factors[0];";
  if (UnitOf(plan.format).offset) {
    return FillText(R"(
      const unsigned scale_zero = ScaleAt(scales, row$column$);
      const float scale = HalfFloats(scale_zero).x;
      const unsigned offset = __byte_perm(scale_zero, scale_zero, 0x3232);
    )",
                    {{"column", ScalesPerGroup(plan) ? ", column" : ""}});
  }
  if (ScalesPerGroup(plan)) return "const float scale = __half2float(ScaleAt(scales, row, column));";
  if (ScalesPerOutput(plan)) return "const float scale = __half2float(scales[min(row, kN - 1)]);";
  return "";
}

}  // namespace

KernelText EmitDequant(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  const bool out_axis = layout.unit_rows > 1;
  const bool segmented = layout.segments > 1;
  KernelText out;
  out.blocks = {"pairs", UnitOf(plan.format).bf16 ? "floats_bf16" : "floats_f16"};
  out.constants = LayoutConstants(plan) + "\n" + StepConstants(plan);
  if (plan.codebook_bytes > 0)
    out.constants +=
        fmt::format("constexpr int kCodebookBytes = {};  // of shared memory\n", plan.codebook_bytes);
  out.functions = ScaleFunction(plan);
  const std::string load = CodebookStage(plan);
  const std::string chunks = segmented ? "(segment + 1 < kSegments ? kChunks : kLastChunks)" : "kChunks";
  std::string unpack;
  const char* components[] = {"x", "y", "z", "w"};
  for (int w = 0; w < layout.vector_words; ++w) {
    unpack += fmt::format("words[r][p * {} + {}] = vector{};\n", layout.vector_words, w,
                          layout.vector_words == 1 ? std::string() : fmt::format(".{}", components[w]));
  }
  const std::string index = CodebookIndexExpression(plan, "row", "column");
  out.kernels = FillText(
      R"(
    extern "C" __global__ void __launch_bounds__(kThreads, $min_blocks$)
    dequant($parameters$) {
      $shared$
      const int lane = threadIdx.x % 32;
      const int row_lane = lane / kColumnLanes;
      const int column_lane = lane % kColumnLanes;
      const int tile = blockIdx.x * $warps$ + threadIdx.x / 32;  // a warp works on one row tile
      const $type$* tile_codes = codes + static_cast<long long>(tile) * kTileVectors;

      // 1. The codebook.
      $codebook$

      const int first_step = blockIdx.z * kBlockSteps;
      const int last_step = min(first_step + kBlockSteps, kSteps);
      for (int step = first_step; step < last_step; ++step) {
        $segment$
        $reload$
        for (int g = 0; g < kStepGroups; ++g) {
          // 2. Codes of all rows; lanes behind the last chunk read none.
          const int lanes = min(kColumnLanes, $chunks$ - first_chunk - g * kColumnLanes);
          const bool active = column_lane < lanes && tile < kRowTiles;
          unsigned words[kRowSlots][kChunkWords];
          const $type$* at = tile_codes + ($segment_chunks$first_chunk + g * kColumnLanes) * kChunkVectors + row_lane * lanes + column_lane;
          #pragma unroll
          for (int r = 0; r < kRowSlots; ++r) {
            #pragma unroll
            for (int p = 0; p < kPlanes; ++p) {
              const $type$ vector = active ? __ldcs(at + (r * kPlanes + p) * kRowLanes * lanes) : $zero$;
              $unpack$
            }
          }

          // 3. Decode and write unit after unit.
          #pragma unroll
          for (int r = 0; r < kRowSlots; ++r) {
            const int row = ((tile * kRowSlots + r) * kRowLanes + row_lane)$unit_rows$;
            #pragma unroll
            for (int u = 0; u < kPieces * kPieceUnits; ++u) {
              const int piece = g * kColumnLanes * kPieces + u / kPieceUnits * lanes + column_lane;
              const int column = $first_column$ + piece * kPieceColumns + u % kPieceUnits * kUnitColumns;
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
      {{"min_blocks", plan.min_blocks},
       {"parameters", Parameters(plan, 0)},
       {"shared", plan.codebook_bytes > 0 ? "extern __shared__ __align__(16) unsigned char shared[];" : ""},
       {"warps", plan.warps_n},
       {"type", WeightType(layout)},
       {"codebook", load.empty()              ? "// There is none."
                    : plan.segmented          ? "Codebook book;  // changes with the segment"
                    : plan.codebook_bytes > 0 ? "const Codebook book = " + load + ";\n__syncthreads();"
                                              : "const Codebook book = " + load + ";"},
       {"segment", segmented        ? "const int segment = step / kSegmentSteps;\n"
                                      "const int first_chunk = step % kSegmentSteps * kStepChunks;"
                   : plan.segmented ? "const int segment = 0;\nconst int first_chunk = step * kStepChunks;"
                                    : "const int first_chunk = step * kStepChunks;"},
       {"reload", plan.segmented
                      ? (plan.codebook_bytes > 0
                             ? "__syncthreads();  // all warps are done with the last codebook\nbook = " +
                                   load + ";\n__syncthreads();"
                             : "book = " + load + ";")
                      : std::string()},
       {"chunks", chunks},
       {"segment_chunks", segmented ? "segment * kChunks + " : ""},
       {"zero", layout.vector_words == 1   ? "0u"
                : layout.vector_words == 2 ? "make_uint2(0, 0)"
                                           : "make_uint4(0, 0, 0, 0)"},
       {"unpack", unpack},
       {"unit_rows", out_axis ? " * kUnitRows" : ""},
       {"first_column", segmented ? "segment * kSegmentColumns + first_chunk * kPieces * kPieceColumns"
                                  : "first_chunk * kPieces * kPieceColumns"},
       {"scale", ReadScale(plan)},
       {"arguments", DecodeArguments(plan, index, "offset")},
       {"store", StoreUnit(plan)}});
  return out;
}

}  // namespace vqllm::internal
