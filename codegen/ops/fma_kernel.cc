// y = x W^T on fp32 FMA: a lane decodes its chunks of a few rows and multiplies them with staged activations.
#include "codegen/op.h"
#include "codegen/text.h"
#include "vq/base/check.h"

namespace vqllm::internal {
namespace {

/// Units that make whole vectors of four columns: what activations are read for at once.
int FragmentUnits(const WeightLayout& layout) {
  return layout.unit_cols % 4 == 0 ? 1 : layout.unit_cols % 2 == 0 ? 2 : 4;
}

bool AlwaysActive(const Plan& plan) { return !plan.ragged && plan.layout.row_tiles % plan.warps_n == 0; }

std::string LoadWords(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  const std::string type = WeightType(layout);
  std::string unpack;
  const char* components[] = {"x", "y", "z", "w"};
  for (int w = 0; w < layout.vector_words; ++w) {
    unpack += fmt::format("words[r][p * {} + {}] = vector{};\n", layout.vector_words, w,
                          layout.vector_words == 1 ? std::string() : fmt::format(".{}", components[w]));
  }
  const std::string zero = layout.vector_words == 1   ? "0u"
                           : layout.vector_words == 2 ? "make_uint2(0, 0)"
                                                      : "make_uint4(0, 0, 0, 0)";
  const std::string lanes = plan.ragged ? "lanes" : "kColumnLanes";
  const std::string load = fmt::format("__ldcs(at + (r * kPlanes + p) * kRowLanes * {})", lanes);
  return FillText(R"(
    unsigned words[kRowSlots][kChunkWords];
    const $type$* at = tile_codes + $group$ + $lane$;
    #pragma unroll
    for (int r = 0; r < kRowSlots; ++r) {
      #pragma unroll
      for (int p = 0; p < kPlanes; ++p) {
        const $type$ vector = $load$;
        $unpack$
      }
    }
  )",
                  {{"type", type},
                   {"group", plan.layout.segments > 1
                                 ? "(segment * kChunks + first_chunk + g * kColumnLanes) * kChunkVectors"
                                 : "(step * kStepChunks + g * kColumnLanes) * kChunkVectors"},
                   {"lane", fmt::format("row_lane * {} + column_lane", lanes)},
                   {"load", AlwaysActive(plan) ? load : fmt::format("active ? {} : {}", load, zero)},
                   {"unpack", unpack}});
}

/// Both values of pair `pair` of weights as fp32.
std::string WeightFloats(const Plan& plan) {
  return UnitOf(plan.format).bf16 ? "Bfloat16Floats" : "HalfFloats";
}
std::string XFloats(const Plan& plan) {
  return plan.activation == DType::kBF16 ? "Bfloat16Floats" : "HalfFloats";
}

/// The products of one decoded unit, from `pairs`, column `u * kUnitColumns` of the fragment, into `into`.
std::string UnitProducts(const Plan& plan, const std::string& into) {
  const WeightLayout& layout = plan.layout;
  if (layout.unit_rows > 1) {
    return FillText(R"(
      #pragma unroll
      for (int j = 0; j < kUnitRows; ++j) {
        const float2 two = $wf$(pairs[j / 2]);
        const float w = j % 2 == 0 ? two.x : two.y;
        #pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const float2 near = $xf$(xs[t][u / 2]);
          $into$ = fmaf(w, u % 2 == 0 ? near.x : near.y, $into$);
        }
      }
    )",
                    {{"wf", WeightFloats(plan)}, {"xf", XFloats(plan)}, {"into", into}});
  }
  if (layout.unit_cols % 2 == 0) {
    return FillText(R"(
      #pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float2 w = $wf$(pairs[i]);
        #pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const float2 near = $xf$(xs[t][u * kPairs + i]);
          $into$ = fmaf(w.x, near.x, $into$);
          $into$ = fmaf(w.y, near.y, $into$);
        }
      }
    )",
                    {{"wf", WeightFloats(plan)}, {"xf", XFloats(plan)}, {"into", into}});
  }
  return FillText(R"(
      #pragma unroll
      for (int e = 0; e < kUnitColumns; ++e) {
        const float2 two = $wf$(pairs[e / 2]);
        const float w = e % 2 == 0 ? two.x : two.y;
        const int column = u * kUnitColumns + e;
        #pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const float2 near = $xf$(xs[t][column / 2]);
          $into$ = fmaf(w, column % 2 == 0 ? near.x : near.y, $into$);
        }
      }
    )",
                  {{"wf", WeightFloats(plan)}, {"xf", XFloats(plan)}, {"into", into}});
}

/// Statements that define `scale` (fp32; for group scales) and `offset` (where units subtract one) of a row
/// at a column.
std::string ReadScale(const Plan& plan, const std::string& row, const std::string& col) {
  const std::string arguments =
      ScalesPerGroup(plan) ? fmt::format("scales, {}, {}", row, col) : "scales, " + row;
  if (!UnitOf(plan.format).offset)
    return fmt::format("const float scale = __half2float(ScaleAt({}));\n", arguments);
  std::string text = fmt::format("const unsigned scale_zero = ScaleAt({});\n", arguments);
  if (ScalesPerGroup(plan)) text += "const float scale = HalfFloats(scale_zero).x;\n";
  return text + "const unsigned offset = __byte_perm(scale_zero, scale_zero, 0x3232);\n";
}

/// Scales of a piece, one a row, read before its units.
std::string PieceScales(const Plan& plan, const std::string& row) {
  if (plan.layout.unit_rows > 1) return "float part[kRowSlots][kUnitRows][kTokens] = {};\n";
  const bool offset = UnitOf(plan.format).offset;
  return FillText(R"(
    float part[kRowSlots][kTokens] = {};
    float scales_of[kRowSlots];
    $offsets$
    #pragma unroll
    for (int r = 0; r < kRowSlots; ++r) {
      $read$
      scales_of[r] = scale;
      $offset$
    }
  )",
                  {{"offsets", offset ? "unsigned offsets[kRowSlots];" : ""},
                   {"read", ReadScale(plan, row, "column")},
                   {"offset", offset ? "offsets[r] = offset;" : ""}});
}

/// acc += scale * part for all tokens and rows of a unit.
std::string AddScaled(const Plan& plan, const std::string& row, const std::string& col,
                      const std::string& part, const std::string& scale) {
  if (plan.layout.unit_rows == 1) {
    return FillText(R"(
      #pragma unroll
      for (int t = 0; t < kTokens; ++t) acc[r][t] = fmaf($scale$, $part$[t], acc[r][t]);
    )",
                    {{"scale", scale}, {"part", part}});
  }
  return FillText(R"(
    #pragma unroll
    for (int j = 0; j < kUnitRows; ++j) {
      const float scale = __half2float(ScaleAt(scales, $row$ * kUnitRows + j, $col$));
      #pragma unroll
      for (int t = 0; t < kTokens; ++t) acc[r][j][t] = fmaf(scale, $part$[j][t], acc[r][j][t]);
    }
  )",
                  {{"row", row}, {"col", col}, {"part", part}});
}

/// Loads the activations of a fragment in the widest vectors that pieces are aligned to.
std::string LoadFragment(const Plan& plan) {
  const bool wide = FragmentUnits(plan.layout) * plan.layout.unit_cols % 8 == 0;
  return FillText(R"(
    unsigned xs[kTokens][kFragmentColumns / 2];
    #pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      #pragma unroll
      for (int i = 0; i < kFragmentColumns / $cols$; ++i) {
        const $type$ some = *reinterpret_cast<const $type$*>(x_at + t * kTokenPitch + f * kFragmentColumns + i * $cols$);
        $unpack$
      }
    }
  )",
                  {{"cols", wide ? 8 : 4},
                   {"type", wide ? "uint4" : "uint2"},
                   {"unpack", wide ? R"(
                      xs[t][4 * i] = some.x;
                      xs[t][4 * i + 1] = some.y;
                      xs[t][4 * i + 2] = some.z;
                      xs[t][4 * i + 3] = some.w;
                    )"
                                   : R"(
                      xs[t][2 * i] = some.x;
                      xs[t][2 * i + 1] = some.y;
                    )"}});
}

std::string Compute(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  const bool out_axis = layout.unit_rows > 1;
  const bool group = ScalesPerGroup(plan);
  const bool per_piece = group && ScalePerPiece(plan);
  const bool per_unit = group && !per_piece;
  const bool offset = UnitOf(plan.format).offset;
  const std::string row =
      out_axis ? "(first_row + r * kRowLanes + row_lane)" : "first_row + r * kRowLanes + row_lane";
  const std::string sizes = out_axis ? "[kUnitRows][kTokens]" : "[kTokens]";
  const std::string indices = out_axis ? "[j][t]" : "[t]";
  const std::string into = (per_piece ? "part[r]" : per_unit ? "part" : "acc[r]") + indices;
  const std::string unit_col = "column + (f * kFragmentUnits + u) * kUnitColumns";
  const std::string index = CodebookIndexExpression(plan, out_axis ? row + " * kUnitRows" : row, unit_col);
  const bool scale_in_unit = (per_unit && !out_axis) || (offset && !group);
  const std::string body =
      FillText(R"(
    #pragma unroll
    for (int u = 0; u < kFragmentUnits; ++u) {
      $part$
      $scale$
      unsigned pairs[kPairs];
      DecodeUnit(words[r], p * kPieceUnits + f * kFragmentUnits + u, $arguments$pairs);
      $products$
      $add$
    }
  )",
               {{"part", per_unit ? "float part" + sizes + " = {};" : std::string()},
                {"scale", scale_in_unit ? ReadScale(plan, row, unit_col) : std::string()},
                {"arguments", DecodeArguments(plan, index, per_piece ? "offsets[r]" : "offset")},
                {"products", UnitProducts(plan, into)},
                {"add", per_unit ? AddScaled(plan, row, unit_col, "part", "scale") : std::string()}});
  return FillText(
      R"(
    #pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int piece = $piece$;
      $column$
      const $element$* x_at = x_shared + piece * kPiecePitch;
      $piece_scales$
      #pragma unroll
      for (int f = 0; f < kPieceUnits / kFragmentUnits; ++f) {
        $load_x$
        #pragma unroll
        for (int r = 0; r < kRowSlots; ++r) {
          $body$
        }
      }
      $add$
    }
  )",
      {{"piece", plan.ragged ? "active ? g * kColumnLanes * kPieces + p * lanes + column_lane : kStepPieces"
                             : "g * kColumnLanes * kPieces + p * kColumnLanes + column_lane"},
       {"column",
        group || IndexesCodebooks(plan) ? "const int column = first_column + piece * kPieceColumns;" : ""},
       {"element", ElementType(plan.activation)},
       {"piece_scales", per_piece ? PieceScales(plan, row) : std::string()},
       {"load_x", LoadFragment(plan)},
       {"body", body},
       {"add", per_piece ? FillText(R"(
                      #pragma unroll
                      for (int r = 0; r < kRowSlots; ++r) {
                        $add$
                      }
                    )",
                                    {{"add", AddScaled(plan, row, "column", "part[r]", "scales_of[r]")}})
                         : std::string()}});
}

std::string StageX(const Plan& plan) {
  const int v = plan.x_vector;
  const std::string type = v == 8 ? "uint4" : v == 4 ? "uint2" : v == 2 ? "unsigned" : "unsigned short";
  const std::string zero = v == 8 ? "make_uint4(0, 0, 0, 0)" : v == 4 ? "make_uint2(0, 0)" : "0";
  const bool token_guard = plan.m % plan.token_tile != 0;
  return FillText(R"(
    for (int i = threadIdx.x; i < kTokens * (kStepColumns / $v$); i += kThreads) {
      const int t = i / (kStepColumns / $v$);
      const int c = i % (kStepColumns / $v$) * $v$;
      $type$ value = $zero$;
      if (first_column + c < kK$guard$) {
        value = __ldg(reinterpret_cast<const $type$*>(x + (first_token + t) * static_cast<long long>(kK) + first_column + c));
      }
      *reinterpret_cast<$type$*>(x_shared + t * kTokenPitch + c / kPieceColumns * kPiecePitch + c % kPieceColumns) = value;
    }
    $zero_piece$
  )",
                  {{"v", v},
                   {"type", type},
                   {"zero", zero},
                   {"guard", token_guard ? " && first_token + t < kM" : ""},
                   {"zero_piece", plan.ragged ? FillText(R"(
                      // Lanes without a chunk multiply with the zeros of one more piece.
                      for (int i = threadIdx.x; i < kTokens * kPieceColumns; i += kThreads) {
                        x_shared[i / kPieceColumns * kTokenPitch + kStepPieces * kPiecePitch + i % kPieceColumns] = $round$(0.0f);
                      }
                    )",
                                                         {{"round", RoundCall(plan.activation)}})
                                              : std::string()}});
}

std::string Epilogue(const Plan& plan) {
  const bool out_axis = plan.layout.unit_rows > 1;
  std::string value = fmt::format("SumLanes({}, kColumnLanes)", out_axis ? "acc[r][j][t]" : "acc[r][t]");
  std::string finish;
  if (ScalesPerOutput(plan)) {
    finish += UnitOf(plan.format).offset ? "sum *= HalfFloats(ScaleAt(scales, row)).x;\n"
                                         : "sum *= __half2float(scales[row]);\n";
  }
  if (HasFactor(plan)) finish += "sum *= factors[0];\n";
  if (plan.split > 1) {
    finish += "partial[(blockIdx.z * kM + first_token + t) * static_cast<long long>(kN) + row] = sum;\n";
  } else {
    if (plan.bias)
      finish += plan.activation == DType::kBF16 ? "sum += __bfloat162float(bias[row]);\n"
                                                : "sum += __half2float(bias[row]);\n";
    finish += fmt::format("y[(first_token + t) * static_cast<long long>(kN) + row] = {}(sum);\n",
                          RoundCall(plan.activation));
  }
  const bool token_guard = plan.m % plan.token_tile != 0;
  const std::string inner =
      FillText(R"(
    const int row = $row$;
    #pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float sum = $value$;
      if (column_lane == 0 && row < kN && tile < kRowTiles$guard$) {
        $finish$
      }
    }
  )",
               {{"row", out_axis ? "(first_row + r * kRowLanes + row_lane) * kUnitRows + j"
                                 : "first_row + r * kRowLanes + row_lane"},
                {"value", value},
                {"guard", token_guard ? " && first_token + t < kM" : ""},
                {"finish", finish}});
  if (!out_axis)
    return "#pragma unroll\nfor (int r = 0; r < kRowSlots; ++r) {\n" +
           FillText("  $inner$", {{"inner", inner}}) + "}\n";
  return FillText(R"(
    #pragma unroll
    for (int r = 0; r < kRowSlots; ++r) {
      #pragma unroll
      for (int j = 0; j < kUnitRows; ++j) {
        $inner$
      }
    }
  )",
                  {{"inner", inner}});
}

}  // namespace

KernelText EmitFmaKernel(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  KernelText out;
  out.blocks = {"reduce", "pairs"};
  const bool bf16_x = plan.activation == DType::kBF16;
  const bool bf16_w = UnitOf(plan.format).bf16;
  if (!bf16_x || !bf16_w || UnitOf(plan.format).offset) out.blocks.insert("floats_f16");
  if (bf16_x || bf16_w) out.blocks.insert("floats_bf16");

  out.constants =
      LayoutConstants(plan) + "\n" + StepConstants(plan) +
      FillText(
          R"(

    // Activations in shared memory, pieces kPiecePitch apart so that neighbouring lanes meet different banks.
    constexpr int kM = $m$;       // tokens
    constexpr int kTokens = $tokens$;  // of a block
    constexpr int kStepColumns = kStepChunks * kPieces * kPieceColumns;
    $step_pieces$
    constexpr int kPiecePitch = $piece_pitch$;
    constexpr int kTokenPitch = $token_pitch$;
    constexpr int kFragmentUnits = $fragment$;  // units whose activations are read at once
    constexpr int kFragmentColumns = kFragmentUnits * kUnitColumns;
    $codebook$

    static_assert(kFragmentColumns % 4 == 0, "activations are read in vectors of four or eight");
    static_assert(kPieceUnits % kFragmentUnits == 0, "a piece is whole fragments");
    static_assert(kK % $x_vector$ == 0, "a row of x is whole vectors");
  )",
          {{"m", plan.m},
           {"tokens", plan.token_tile},
           {"step_pieces", plan.ragged ? "constexpr int kStepPieces = kStepChunks * kPieces;" : ""},
           {"piece_pitch", plan.piece_pitch},
           {"token_pitch", plan.token_pitch},
           {"fragment", FragmentUnits(layout)},
           {"codebook", plan.codebook_bytes > 0
                            ? fmt::format("constexpr int kCodebookBytes = {};  // before the activations",
                                          plan.codebook_bytes)
                            : std::string()},
           {"x_vector", plan.x_vector}});
  out.functions = ScaleFunction(plan);

  const bool segmented = layout.segments > 1;
  const bool reloads = plan.segmented;
  const std::string load = CodebookStage(plan);
  const std::string step_start =
      FillText(R"(
    $segment$
    __syncthreads();  // all warps are done with the last step's activations$and_codebook$
    $load$
    $stage_x$
    __syncthreads();
  )",
               {{"segment", segmented ? R"(
                                              const int segment = step / kSegmentSteps;
                                              const int first_chunk = step % kSegmentSteps * kStepChunks;
                                              const int first_column = segment * kSegmentColumns + first_chunk * kPieces * kPieceColumns;
                                            )"
                            : reloads ? R"(
                                              const int segment = 0;
                                              const int first_column = step * kStepColumns;
                                            )"
                                      : "const int first_column = step * kStepColumns;"},
                {"and_codebook", reloads ? " and codebook" : ""},
                {"load", reloads ? "book = " + load + ";" : std::string()},
                {"stage_x", StageX(plan)}});
  std::string lanes;
  if (plan.ragged) {
    lanes = segmented
                ? "const int chunks = segment + 1 < kSegments ? kChunks : kLastChunks;\n"
                  "const int lanes = min(kColumnLanes, chunks - first_chunk - g * kColumnLanes);\n"
                : "const int lanes = min(kColumnLanes, kChunks - (step * kStepGroups + g) * kColumnLanes);\n";
  }
  const std::string active_rows = plan.layout.row_tiles % plan.warps_n == 0 ? "" : "tile < kRowTiles";
  std::string active = plan.ragged ? "column_lane < lanes" : "";
  if (!active_rows.empty()) active += (active.empty() ? "" : " && ") + active_rows;

  // Groups of the last step of a segment may be fewer.
  std::string groups = "kStepGroups";
  if (plan.step_groups > 1 || segmented) {
    const std::string chunks = segmented ? "(segment + 1 < kSegments ? kChunks : kLastChunks) - first_chunk"
                                         : "kChunks - step * kStepChunks";
    const bool even =
        !segmented && (layout.segment_chunks + layout.lanes_k - 1) / layout.lanes_k % plan.step_groups == 0;
    if (!even) groups = fmt::format("min(kStepGroups, ({} + kColumnLanes - 1) / kColumnLanes)", chunks);
  }
  out.kernels = FillText(R"(
    extern "C" __global__ void __launch_bounds__(kThreads, $min_blocks$)
    $name$($parameters$) {
      extern __shared__ __align__(16) unsigned char shared[];
      $element$* x_shared = reinterpret_cast<$element$*>(shared$x_offset$);
      const int lane = threadIdx.x % 32;
      const int row_lane = lane / kColumnLanes;
      const int column_lane = lane % kColumnLanes;
      const int tile = blockIdx.x * $warps$ + threadIdx.x / 32;  // a warp works on one row tile
      const int first_row = tile * kRowSlots * kRowLanes;$row_unit$
      const int first_token = blockIdx.y * kTokens;
      const $type$* tile_codes = codes + static_cast<long long>(tile) * kTileVectors;

      // 1. The codebook.
      $codebook$

      float acc[kRowSlots]$unit_rows$[kTokens] = {};
      const int first_step = blockIdx.z * kBlockSteps;
      const int last_step = min(first_step + kBlockSteps, kSteps);
      for (int step = first_step; step < last_step; ++step) {
        // 2. The activations of this step$codebook_too$.
        $step_start$

        // 3. Codes of all rows, then unit after unit: decode and multiply.
        const int groups = $groups$;
        for (int g = 0; g < groups; ++g) {
          $lanes$
          $active$
          $load_words$
          $compute$
        }
      }

      // 4. Sum over the lanes of a row and write.
      $epilogue$
    }
    $sum$
  )",
                         {{"min_blocks", plan.min_blocks},
                          {"name", plan.launches[0].kernel},
                          {"parameters", Parameters(plan, 0)},
                          {"element", ElementType(plan.activation)},
                          {"x_offset", plan.codebook_bytes > 0 ? " + kCodebookBytes" : ""},
                          {"warps", plan.warps_n},
                          {"row_unit", layout.unit_rows > 1 ? "  // of units" : ""},
                          {"type", WeightType(layout)},
                          {"codebook", load.empty() ? "// There is none."
                                       : reloads    ? "Codebook book;  // changes with the segment"
                                                    : "const Codebook book = " + load + ";"},
                          {"unit_rows", layout.unit_rows > 1 ? "[kUnitRows]" : ""},
                          {"codebook_too", reloads ? " and its codebook" : ""},
                          {"step_start", step_start},
                          {"groups", groups},
                          {"lanes", lanes},
                          {"active", active.empty() ? std::string() : "const bool active = " + active + ";"},
                          {"load_words", LoadWords(plan)},
                          {"compute", Compute(plan)},
                          {"epilogue", Epilogue(plan)},
                          {"sum", plan.split > 1 ? "\n" + SumPartialsKernel(plan) : std::string()}});
  return out;
}

}  // namespace vqllm::internal
