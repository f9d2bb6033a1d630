// y = x W^T on mma.sync: rows of W are the 16 rows of the fragment, tokens its 8 columns. The offline order
// of the codes gives lane (g, q) four consecutive columns of rows g and g + 8, which are the lane's part of
// fragment A under a permutation of k that fragment B follows for free: no shuffle, no round trip through
// shared memory (VQ-LLM, section VI-B, and what it lacks).
#include "codegen/op.h"
#include "codegen/text.h"
#include "vq/base/check.h"

namespace vqllm::internal {
namespace {

int FragmentUnits(const WeightLayout& layout) {
  return layout.unit_cols % 4 == 0 ? 1 : layout.unit_cols % 2 == 0 ? 2 : 4;
}

std::string Unpack(const WeightLayout& layout) {
  std::string unpack;
  const char* components[] = {"x", "y", "z", "w"};
  for (int w = 0; w < layout.vector_words; ++w) {
    unpack += fmt::format("words[r][p * {} + {}] = vector{};\n", layout.vector_words, w,
                          layout.vector_words == 1 ? std::string() : fmt::format(".{}", components[w]));
  }
  return unpack;
}

/// StageStep(x, x_shared, step...): starts the copies of one step's activations.
std::string StageFunction(const Plan& plan) {
  const int v = plan.x_vector;
  const std::string type = v == 8 ? "uint4" : v == 4 ? "uint2" : v == 2 ? "unsigned" : "unsigned short";
  const bool guard = plan.m % plan.token_tile != 0;
  const std::string inside = std::string("column < kK") + (guard ? " && first_token + t < kM" : "");
  const std::string copy = v == 1 ? FillText(
                                        "*reinterpret_cast<unsigned short*>(to) = $inside$ ? "
                                        "__ldg(reinterpret_cast<const unsigned short*>(from)) : 0;",
                                        {{"inside", inside}})
                                  : FillText(
                                        "CopyAsync(reinterpret_cast<$type$*>(to), reinterpret_cast<const "
                                        "$type$*>(inside ? from : x), inside);",
                                        {{"type", type}});
  return FillText(R"(
    // Starts the copies of kStepColumns activations of each token from `first_column` on; zeros behind the last column$tokens$.
    __device__ __forceinline__ void StageActivations(const $element$* __restrict__ x, $element$* to_shared, int first_column, int first_token) {
      for (int i = threadIdx.x; i < kTokens * (kStepColumns / $v$); i += kThreads) {
        const int t = i / (kStepColumns / $v$);
        const int c = i % (kStepColumns / $v$) * $v$;
        const int column = first_column + c;
        $element$* to = to_shared + t * kTokenPitch + c / kPieceColumns * kPiecePitch + c % kPieceColumns;
        const $element$* from = x + (first_token + t) * static_cast<long long>(kK) + column;
        $inside$
        $copy$
      }
    }
  )",
                  {{"tokens", guard ? " and token" : ""},
                   {"element", ElementType(plan.activation)},
                   {"v", v},
                   {"inside", v == 1 ? std::string() : "const bool inside = " + inside + ";"},
                   {"copy", copy}});
}

/// Pairs (2i, 2i + 1) of the columns of a fragment; units of odd width are cut across.
std::string FragmentPair(const Plan& plan, const std::string& slot, const std::string& i) {
  const int cols = plan.layout.unit_cols;
  if (cols % 2 == 0) {
    if (FragmentUnits(plan.layout) == 1) return fmt::format("weights[{}][0][{}]", slot, i);
    return fmt::format("weights[{0}][({1}) / kPairs][({1}) % kPairs]", slot, i);
  }
  return fmt::format("OddPair(weights[{}], {})", slot, i);
}

std::string OddPairFunction(const Plan& plan) {
  if (plan.layout.unit_cols % 2 == 0) return "";
  return R"(
    // Columns 2i and 2i + 1 of a fragment whose units have an odd number of columns.
    __device__ __forceinline__ unsigned OddPair(const unsigned (&units)[kFragmentUnits][kPairs], int i) {
      const int low = 2 * i % kUnitColumns;
      const int high = (2 * i + 1) % kUnitColumns;
      const unsigned first = units[2 * i / kUnitColumns][low / 2];
      const unsigned second = units[(2 * i + 1) / kUnitColumns][high / 2];
      return __byte_perm(first, second, (low % 2 == 0 ? 0x0010 : 0x0032) | (high % 2 == 0 ? 0x5400 : 0x7600));
    }
  )";
}

std::string ScaleUnit(const Plan& plan) {
  const bool group = ScalesPerGroup(plan);
  const bool offset = UnitOf(plan.format).offset;
  if (!group && !offset) return "";
  const std::string row = "first_row + r * kRowLanes + row_lane";
  const std::string arguments =
      group ? fmt::format("scales, {}, column + (f * kFragmentUnits + u) * kUnitColumns", row)
            : "scales, " + row;
  if (!offset) return fmt::format("const unsigned scale = AsPair(__half2half2(ScaleAt({})));\n", arguments);
  std::string text = fmt::format("const unsigned scale_zero = ScaleAt({});\n", arguments);
  text += "const unsigned offset = __byte_perm(scale_zero, scale_zero, 0x3232);\n";
  if (group) text += "const unsigned scale = __byte_perm(scale_zero, scale_zero, 0x1010);\n";
  return text;
}

std::string Compute(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  const bool group = ScalesPerGroup(plan);
  const bool to_bf16 = plan.activation == DType::kBF16 && !UnitOf(plan.format).bf16;
  const int fragment_cols = FragmentUnits(layout) * layout.unit_cols;
  const bool wide = fragment_cols % 8 == 0;
  const std::string index = CodebookIndexExpression(plan, "first_row + r * kRowLanes + row_lane",
                                                    "column + (f * kFragmentUnits + u) * kUnitColumns");
  std::string after;
  if (group)
    after += "for (int i = 0; i < kPairs; ++i) weights[r][u][i] = MulPairs(weights[r][u][i], scale);\n";
  if (to_bf16) after += "for (int i = 0; i < kPairs; ++i) weights[r][u][i] = ToBfloat16(weights[r][u][i]);\n";
  return FillText(
      R"(
    #pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int piece = (warp_k * kPieces + p) * kColumnLanes + column_lane;
      $column$
      #pragma unroll
      for (int f = 0; f < kPieceUnits / kFragmentUnits; ++f) {
        unsigned weights[kRowSlots][kFragmentUnits][kPairs];
        #pragma unroll
        for (int r = 0; r < kRowSlots; ++r) {
          #pragma unroll
          for (int u = 0; u < kFragmentUnits; ++u) {
            $scale$
            DecodeUnit(words[r], p * kPieceUnits + f * kFragmentUnits + u, $arguments$weights[r][u]);
            $after$
          }
        }
        #pragma unroll
        for (int j = 0; j < kTokens / 8; ++j) {
          const $element$* x_at = x_now + (j * 8 + row_lane) * kTokenPitch + piece * kPiecePitch + f * kFragmentColumns;
          unsigned xs[kFragmentColumns / 2];
          #pragma unroll
          for (int i = 0; i < kFragmentColumns / $cols$; ++i) {
            const $type$ some = *reinterpret_cast<const $type$*>(x_at + i * $cols$);
            $unpack$
          }
          #pragma unroll
          for (int i = 0; i < kFragmentColumns / 4; ++i) {
            #pragma unroll
            for (int r = 0; r < kRowSlots; r += 2) {
              Mma(acc[r / 2][j], $a0$, $a1$, $a2$, $a3$, xs[2 * i], xs[2 * i + 1]);
            }
          }
        }
      }
    }
  )",
      {{"column",
        group || IndexesCodebooks(plan) ? "const int column = first_column + piece * kPieceColumns;" : ""},
       {"scale", ScaleUnit(plan)},
       {"arguments", DecodeArguments(plan, index, "offset")},
       {"after", after},
       {"element", ElementType(plan.activation)},
       {"cols", wide ? 8 : 4},
       {"type", wide ? "uint4" : "uint2"},
       {"unpack", wide ? R"(
                      xs[4 * i] = some.x;
                      xs[4 * i + 1] = some.y;
                      xs[4 * i + 2] = some.z;
                      xs[4 * i + 3] = some.w;
                    )"
                       : R"(
                      xs[2 * i] = some.x;
                      xs[2 * i + 1] = some.y;
                    )"},
       {"a0", FragmentPair(plan, "r", "2 * i")},
       {"a1", FragmentPair(plan, "r + 1", "2 * i")},
       {"a2", FragmentPair(plan, "r", "2 * i + 1")},
       {"a3", FragmentPair(plan, "r + 1", "2 * i + 1")}});
}

std::string Finish(const Plan& plan) {
  std::string finish;
  if (ScalesPerOutput(plan)) {
    finish += UnitOf(plan.format).offset ? "sum *= HalfFloats(ScaleAt(scales, row)).x;\n"
                                         : "sum *= __half2float(scales[row]);\n";
  }
  if (HasFactor(plan)) finish += "sum *= factors[0];\n";
  if (plan.split > 1)
    return finish + "partial[(blockIdx.z * kM + token) * static_cast<long long>(kN) + row] = sum;\n";
  if (plan.bias)
    finish += plan.activation == DType::kBF16 ? "sum += __bfloat162float(bias[row]);\n"
                                              : "sum += __half2float(bias[row]);\n";
  return finish +
         fmt::format("y[token * static_cast<long long>(kN) + row] = {}(sum);\n", RoundCall(plan.activation));
}

}  // namespace

KernelText EmitMmaKernel(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  VQLLM_CHECK(layout.lanes_row == 8 && layout.lanes_k == 4 && layout.row_slots % 2 == 0 &&
              layout.unit_rows == 1 && !plan.ragged);
  const bool bf16 = plan.activation == DType::kBF16;
  const bool async = plan.x_vector > 1;
  const bool group = ScalesPerGroup(plan);
  KernelText out;
  out.blocks = {"pairs", bf16 ? "mma_bf16" : "mma_f16"};
  if (async) {
    out.blocks.insert("copy_pipeline");
    out.blocks.insert(plan.x_vector == 8   ? "copy_async"
                      : plan.x_vector == 4 ? "copy_async_8"
                                           : "copy_async_4");
  }
  if (group) out.blocks.insert("pairs_mul");
  if (bf16 && !UnitOf(plan.format).bf16) out.blocks.insert("pairs_to_bf16");
  if (UnitOf(plan.format).offset && ScalesPerOutput(plan)) out.blocks.insert("floats_f16");

  out.constants =
      LayoutConstants(plan) + "\n" + StepConstants(plan) +
      FillText(
          R"(

    // Activations in shared memory: $slots$ slots of one step each. Pieces and tokens lie so far apart that the eight
    // lanes of one 16-byte access meet different banks.
    constexpr int kM = $m$;       // tokens
    constexpr int kTokens = $tokens$;  // of a block
    constexpr int kStepColumns = kStepChunks * kPieces * kPieceColumns;
    constexpr int kPiecePitch = $piece_pitch$;
    constexpr int kTokenPitch = $token_pitch$;
    constexpr int kSlots = $slots$;
    constexpr int kSlotValues = kTokens * kTokenPitch;
    constexpr int kFragmentUnits = $fragment$;  // units that are whole steps of four columns a lane
    constexpr int kFragmentColumns = kFragmentUnits * kUnitColumns;
    constexpr int kWarpsN = $warps_n$;  // warps side by side over outputs
    constexpr int kWarpsK = $warps_k$;  // warps that share outputs, a group of each step each
    constexpr int kBlockRows = kWarpsN * kRowSlots * kRowLanes;
    constexpr int kSumPitch = kBlockRows + 8;  // floats from token to token of the sums
    $codebook$

    static_assert(kTokens % 8 == 0, "fragment B has eight tokens");
    static_assert(kFragmentColumns % 4 == 0, "a lane gives four columns to an mma");
    static_assert(kPieceUnits % kFragmentUnits == 0, "a piece is whole fragments");
    static_assert(kStepGroups == kWarpsK, "each warp takes one group of a step");
    static_assert(kK % $x_vector$ == 0, "a row of x is whole vectors");
  )",
          {{"m", plan.m},
           {"tokens", plan.token_tile},
           {"piece_pitch", plan.piece_pitch},
           {"token_pitch", plan.token_pitch},
           {"slots", plan.x_slots},
           {"fragment", FragmentUnits(layout)},
           {"warps_n", plan.warps_n},
           {"warps_k", plan.warps_k},
           {"codebook", plan.codebook_bytes > 0
                            ? fmt::format("constexpr int kCodebookBytes = {};  // before the activations",
                                          plan.codebook_bytes)
                            : std::string()},
           {"x_vector", plan.x_vector}});

  const bool segmented = layout.segments > 1;
  const std::string column_of =
      segmented ? "step / kSegmentSteps * kSegmentColumns + step % kSegmentSteps * kStepColumns"
                : "step * kStepColumns";
  out.functions = ScaleFunction(plan) + (ScaleFunction(plan).empty() ? "" : "\n") + StageFunction(plan) +
                  FillText(R"(

    // The first column of a step.
    __device__ __forceinline__ int ColumnOf(int step) { return $column$; }
  )",
                           {{"column", column_of}});
  const std::string odd = OddPairFunction(plan);
  if (!odd.empty()) out.functions += "\n" + FillText(odd, {});

  const std::string load = CodebookStage(plan);
  const int even_groups = static_cast<int>(layout.segment_chunks / layout.lanes_k);
  const bool all_groups = !segmented && even_groups % plan.step_groups == 0;
  std::string present = "tile < kRowTiles";
  if (!all_groups) {
    present += segmented ? " && step % kSegmentSteps * kWarpsK + warp_k < (step / kSegmentSteps + 1 < "
                           "kSegments ? kChunks : kLastChunks) / kColumnLanes"
                         : " && step * kWarpsK + warp_k < kChunks / kColumnLanes";
  }
  const std::string chunk =
      segmented ? "step / kSegmentSteps * kChunks + (step % kSegmentSteps * kWarpsK + warp_k) * kColumnLanes"
                : "(step * kWarpsK + warp_k) * kColumnLanes";
  const bool always = all_groups && layout.row_tiles % plan.warps_n == 0;
  const std::string compute = always ? Compute(plan)
                                     : FillText(R"(
    if (present) {
      $compute$
    }
  )",
                                                {{"compute", Compute(plan)}});
  const std::string zero = layout.vector_words == 1   ? "0u"
                           : layout.vector_words == 2 ? "make_uint2(0, 0)"
                                                      : "make_uint4(0, 0, 0, 0)";
  const bool guard = plan.m % plan.token_tile != 0;
  std::string write_guard;
  if (static_cast<int64_t>(plan.launches[0].grid_x) * plan.BlockRows() != plan.n) write_guard = "row < kN";
  if (guard) write_guard += std::string(write_guard.empty() ? "" : " && ") + "token < kM";
  out.kernels = FillText(
      R"(
    extern "C" __global__ void __launch_bounds__(kThreads, $min_blocks$)
    $name$($parameters$) {
      extern __shared__ __align__(16) unsigned char shared[];
      $element$* x_shared = reinterpret_cast<$element$*>(shared$x_offset$);
      const int lane = threadIdx.x % 32;
      const int row_lane = lane / kColumnLanes;    // g of the mma fragments
      const int column_lane = lane % kColumnLanes;  // q
      const int warp_n = threadIdx.x / 32 % kWarpsN;
      const int warp_k = threadIdx.x / 32 / kWarpsN;
      const int tile = blockIdx.x * kWarpsN + warp_n;
      $first_row$
      const int first_token = blockIdx.y * kTokens;
      const $type$* tile_codes = codes + static_cast<long long>(tile) * kTileVectors + lane;
      const int first_step = blockIdx.z * kBlockSteps;
      const int last_step = min(first_step + kBlockSteps, kSteps);

      // 1. Start the copies of the first steps; meanwhile fetch the codebook.
      #pragma unroll
      for (int s = 0; s < kSlots - 1; ++s) {
        if (first_step + s < last_step) StageActivations(x, x_shared + s * kSlotValues, ColumnOf(first_step + s), first_token);
        $commit$
      }
      $codebook$

      float acc[kRowSlots / 2][kTokens / 8][4] = {};
      for (int step = first_step; step < last_step; ++step) {
        // 2. Codes of this step, straight into registers.
        $present$
        unsigned words[kRowSlots][kChunkWords];
        const $type$* at = tile_codes + ($chunk$) * kChunkVectors;
        #pragma unroll
        for (int r = 0; r < kRowSlots; ++r) {
          #pragma unroll
          for (int p = 0; p < kPlanes; ++p) {
            const $type$ vector = $load_vector$;
            $unpack$
          }
        }

        // 3. Wait for this step's activations; then refill the slot that everybody has left.
        $wait$
        __syncthreads();
        $reload$
        const int next = step + kSlots - 1;
        if (next < last_step) {
          StageActivations(x, x_shared + (next - first_step) % kSlots * kSlotValues, ColumnOf(next), first_token);
        }
        $commit$

        // 4. Decode into fragments A, read fragments B, multiply.
        const $element$* x_now = x_shared + (step - first_step) % kSlots * kSlotValues;
        $first_column$
        $compute$
      }

      // 5. Bring the sums together in shared memory and write rows of outputs.
      $drain$
      __syncthreads();
      float* sums = reinterpret_cast<float*>(shared);
      #pragma unroll
      for (int r = 0; r < kRowSlots / 2; ++r) {
        #pragma unroll
        for (int j = 0; j < kTokens / 8; ++j) {
          float* to = sums + (warp_k * kTokens + j * 8 + 2 * column_lane) * kSumPitch + (warp_n * kRowSlots + 2 * r) * kRowLanes + row_lane;
          to[0] = acc[r][j][0];
          to[kSumPitch] = acc[r][j][1];
          to[kRowLanes] = acc[r][j][2];
          to[kSumPitch + kRowLanes] = acc[r][j][3];
        }
      }
      __syncthreads();
      for (int i = threadIdx.x; i < kTokens * kBlockRows; i += kThreads) {
        const int row = blockIdx.x * kBlockRows + i % kBlockRows;
        const int token = first_token + i / kBlockRows;
        float sum = 0;
        for (int s = 0; s < kWarpsK; ++s) sum += sums[(s * kTokens + i / kBlockRows) * kSumPitch + i % kBlockRows];
        $write$
      }
    }
    $sum$
  )",
      {{"min_blocks", plan.min_blocks},
       {"name", plan.launches[0].kernel},
       {"parameters", Parameters(plan, 0)},
       {"element", ElementType(plan.activation)},
       {"x_offset", plan.codebook_bytes > 0 ? " + kCodebookBytes" : ""},
       {"first_row", group || UnitOf(plan.format).offset || IndexesCodebooks(plan)
                         ? "const int first_row = tile * kRowSlots * kRowLanes;"
                         : ""},
       {"type", WeightType(layout)},
       {"commit", async ? "CommitCopies();" : ""},
       {"codebook", load.empty()     ? ""
                    : plan.segmented ? "Codebook book;  // changes with the segment"
                                     : "const Codebook book = " + load + ";"},
       {"present", always ? std::string() : "const bool present = " + present + ";"},
       {"chunk", chunk},
       {"load_vector", always ? std::string("__ldcs(at + (r * kPlanes + p) * 32)")
                              : "present ? __ldcs(at + (r * kPlanes + p) * 32) : " + zero},
       {"unpack", Unpack(layout)},
       {"wait", async ? "WaitCopies(kSlots - 2);" : ""},
       {"reload", plan.segmented ? FillText(R"(
                             if (step == first_step || step % $steps$ == 0) {
                               const int segment = step / $steps$;
                               book = $load$;
                               __syncthreads();
                             }
                           )",
                                            {{"steps", plan.steps_segment}, {"load", load}})
                                 : std::string()},
       {"first_column", group || IndexesCodebooks(plan) ? "const int first_column = ColumnOf(step);" : ""},
       {"compute", compute},
       {"drain", async ? "WaitCopies(0);" : ""},
       {"write", write_guard.empty() ? Finish(plan)
                                     : "if (" + write_guard + ") {\n" +
                                           FillText("  $finish$", {{"finish", Finish(plan)}}) + "}"},
       {"sum", plan.split > 1 ? "\n" + SumPartialsKernel(plan) : std::string()}});
  return out;
}

}  // namespace vqllm::internal
