// What a lane of the fp32 kernel does with the codes of its rows: decode a unit, multiply, add.
#include <fmt/format.h>

#include "codegen/ops/parts.h"
#include "codegen/text.h"

namespace vqllm::internal {
namespace {

/// The products of one decoded unit, from `pairs`, unit `u` of the fragment, into `into`.
std::string UnitProducts(const Plan& plan, const std::string& into) {
  const WeightLayout& layout = plan.layout;
  const std::string weights = PairFloats(UnitOf(plan.format).bf16);
  const std::string xs = PairFloats(plan.activation == DType::kBF16);
  if (layout.unit_rows > 1) {
    return FillText(R"(
      #pragma unroll
      for (int j = 0; j < kUnitRows; ++j) {
        const float2 two = $weights$(pairs[j / 2]);
        const float w = j % 2 == 0 ? two.x : two.y;
        #pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const float2 near = $xs$(xs[t][u / 2]);
          $into$ = fmaf(w, u % 2 == 0 ? near.x : near.y, $into$);
        }
      }
    )",
                    {{"weights", weights}, {"xs", xs}, {"into", into}});
  }
  if (layout.unit_cols % 2 == 0) {
    return FillText(R"(
      #pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float2 w = $weights$(pairs[i]);
        #pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const float2 near = $xs$(xs[t][$at$i]);
          $into$ = fmaf(w.x, near.x, $into$);
          $into$ = fmaf(w.y, near.y, $into$);
        }
      }
    )",
                    {{"weights", weights},
                     {"xs", xs},
                     {"at", layout.FragmentUnits() > 1 ? "u * kPairs + " : ""},
                     {"into", into}});
  }
  return FillText(R"(
      #pragma unroll
      for (int e = 0; e < kUnitColumns; ++e) {
        const float2 two = $weights$(pairs[e / 2]);
        const float w = e % 2 == 0 ? two.x : two.y;
        const int i = u * kUnitColumns + e;  // column of the fragment
        #pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const float2 near = $xs$(xs[t][i / 2]);
          $into$ = fmaf(w, i % 2 == 0 ? near.x : near.y, $into$);
        }
      }
    )",
                  {{"weights", weights}, {"xs", xs}, {"into", into}});
}

/// Statements that define `scale` (group scales, fp32) and `offset` (where units subtract one) at a column.
std::string ReadScale(const Plan& plan, const std::string& col) {
  const std::string call = ScaleCall(plan, "row", col);
  if (!UnitOf(plan.format).offset) return fmt::format("const float scale = __half2float({});\n", call);
  std::string text = fmt::format("const unsigned scale_zero = {};\n", call);
  if (ScalesPerGroup(plan)) text += "const float scale = HalfFloats(scale_zero).x;\n";
  return text + "const unsigned offset = __byte_perm(scale_zero, scale_zero, 0x3232);\n";
}

/// Scales of a piece, one a row, read before its units.
std::string PieceScales(const Plan& plan) {
  if (plan.layout.unit_rows > 1) return "float part[kRowSlots][kUnitRows][kTokens] = {};\n";
  const bool offset = UnitOf(plan.format).offset;
  return FillText(R"(
    float part[kRowSlots][kTokens] = {};
    float piece_scales[kRowSlots];
    $offsets$
    #pragma unroll
    for (int r = 0; r < kRowSlots; ++r) {
      const int row = $row$;
      $read$
      piece_scales[r] = scale;
      $offset$
    }
  )",
                  {{"offsets", offset ? "unsigned offsets[kRowSlots];" : ""},
                   {"row", RowOfSlot(plan.layout)},
                   {"read", ReadScale(plan, "column")},
                   {"offset", offset ? "offsets[r] = offset;" : ""}});
}

/// acc += scale * part for all tokens and rows of a unit.
std::string AddScaled(const Plan& plan, const std::string& col, const std::string& part,
                      const std::string& scale) {
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
      const float scale = __half2float($call$);
      #pragma unroll
      for (int t = 0; t < kTokens; ++t) acc[r][j][t] = fmaf(scale, $part$[j][t], acc[r][j][t]);
    }
  )",
                  {{"call", ScaleCall(plan, "row + j", col)}, {"part", part}});
}

}  // namespace

std::string FmaProducts(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  const bool out_axis = layout.unit_rows > 1;
  const bool group = ScalesPerGroup(plan);
  const bool per_piece = ScalePerPiece(plan);
  const bool per_unit = group && !per_piece;
  const bool offset = UnitOf(plan.format).offset;
  const bool indexed = IndexesCodebooks(plan);
  const int fragment = layout.FragmentUnits();
  const std::string row_of = out_axis ? "const int row = (" + RowOfSlot(layout) + ") * kUnitRows;\n"
                                      : "const int row = " + RowOfSlot(layout) + ";\n";
  const std::string into = (per_piece  ? "part[r]"
                            : per_unit ? "part"
                                       : "acc[r]") +
                           std::string(out_axis ? "[j][t]" : "[t]");
  const std::string unit_col = "column" + UnitColumn(layout);
  const bool scale_in_unit = (per_unit && !out_axis) || (offset && !group);
  const std::string unit = FillText(
      R"(
    $part$
    $scale$
    unsigned pairs[kPairs];
    DecodeUnit(words[r], $unit$, $arguments$pairs);
    $products$
    $add$
  )",
      {{"part", !per_unit  ? ""
                : out_axis ? "float part[kUnitRows][kTokens] = {};"
                           : "float part[kTokens] = {};"},
       {"scale", scale_in_unit ? ReadScale(plan, unit_col) : std::string()},
       {"unit", UnitIndex(layout)},
       {"arguments",
        DecodeArguments(plan, CodebookIndex(plan, "row", unit_col), per_piece ? "offsets[r]" : "offset")},
       {"products", UnitProducts(plan, into)},
       {"add", per_unit ? AddScaled(plan, unit_col, "part", "scale") : std::string()}});
  const std::string fragment_at = layout.piece_units > fragment
                                      ? "x_at + t * kTokenPitch + f * kFragmentColumns"
                                      : "x_at + t * kTokenPitch";
  const std::string of_fragment = FillText(
      R"(
    unsigned xs[kTokens][kFragmentColumns / 2];
    #pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      $read$
    }
    #pragma unroll
    for (int r = 0; r < kRowSlots; ++r) {
      $row$
      $units$
    }
  )",
      {{"read", ReadFragment(plan, "xs[t]", fragment_at)},
       {"row", scale_in_unit || per_unit || indexed ? row_of : std::string()},
       {"units", Unrolled("u", "kFragmentUnits", fragment, unit)}});
  const std::string add = FillText(R"(
    #pragma unroll
    for (int r = 0; r < kRowSlots; ++r) {
      $row$
      $add$
    }
  )",
                                   {{"row", out_axis ? row_of : std::string()},
                                    {"add", AddScaled(plan, "column", "part[r]", "piece_scales[r]")}});
  return FillText(
      R"(
    #pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int piece = $piece$;
      $column$
      const $element$* x_at = x_shared + piece * kPiecePitch;
      $piece_scales$
      $fragments$
      $add$
    }
  )",
      {{"piece", plan.ragged ? "active ? g * kColumnLanes * kPieces + p * lanes + column_lane : kStepPieces"
                             : "(g * kPieces + p) * kColumnLanes + column_lane"},
       {"column", group || indexed ? "const int column = first_column + piece * kPieceColumns;" : ""},
       {"element", ElementType(plan.activation)},
       {"piece_scales", per_piece ? PieceScales(plan) : std::string()},
       {"fragments",
        Unrolled("f", "kPieceUnits / kFragmentUnits", layout.piece_units / fragment, of_fragment)},
       {"add", per_piece ? add : std::string()}});
}

}  // namespace vqllm::internal
