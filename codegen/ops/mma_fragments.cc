// How decoded weights become fragment A of mma.m16n8k16, and activations fragment B. Lane (g, q) of a warp, g
// = lane / 4 and q = lane % 4, decodes neighbouring columns of a few rows; the mma wants columns 2q, 2q + 1,
// 2q + 8, 2q + 9 of 16.
//   zero_shuffle      takes the lane's columns as they are: a permutation of k, which fragment B follows for
//   free by
//                     reading the same columns (what VQ-LLM lacks). 16-byte reads move as much as ldmatrix
//                     would.
//   register_shuffle  exchanges pairs within the four lanes of a row (VQ-LLM, section VI-B).
//   shared            goes through a tile in shared memory and comes back by ldmatrix.
// Where subvectors lie along outputs, a lane holds all rows of one column, and byte permutes pair up two
// columns.
#include <fmt/format.h>

#include "codegen/ops/parts.h"
#include "codegen/text.h"

namespace vqllm::internal {
namespace {

/// True where a fragment is one unit and its pairs are what the mma wants.
bool PairsAsDecoded(const WeightLayout& layout) {
  return layout.unit_rows == 1 && layout.unit_cols % 2 == 0 && layout.FragmentUnits() == 1;
}

/// Columns 2i and 2i + 1 of a row of the lane's fragment, expressions all.
std::string Pair(const Plan& plan, const std::string& row, const std::string& i) {
  if (PairsAsDecoded(plan.layout)) return fmt::format("weights[{}][0][{}]", row, i);
  return fmt::format("WeightPair(weights, {}, {})", row, i);
}

std::string WeightPairFunction(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  if (PairsAsDecoded(layout)) return "";
  std::string body;
  if (layout.unit_rows > 1) {
    body = R"(
      const int e = row % kUnitRows;
      const unsigned first = weights[row / kUnitRows][2 * i][e / 2];
      const unsigned second = weights[row / kUnitRows][2 * i + 1][e / 2];
      return __byte_perm(first, second, e % 2 == 0 ? 0x5410 : 0x7632);
    )";
  } else if (layout.unit_cols % 2 != 0) {
    body = R"(
      const int low = 2 * i % kUnitColumns;
      const int high = (2 * i + 1) % kUnitColumns;
      const unsigned first = weights[row][2 * i / kUnitColumns][low / 2];
      const unsigned second = weights[row][(2 * i + 1) / kUnitColumns][high / 2];
      return __byte_perm(first, second, (low % 2 == 0 ? 0x0010 : 0x0032) | (high % 2 == 0 ? 0x5400 : 0x7600));
    )";
  } else {
    body = "return weights[row][i / kPairs][i % kPairs];";
  }
  return FillText(R"(
    // Columns 2i and 2i + 1 of the lane's row `row` of W, both known once loops are unrolled.
    __device__ __forceinline__ unsigned WeightPair(const unsigned (&weights)[kRowSlots][kFragmentUnits][kPairs],
                                                   int row, int i) {
      $body$
    }
  )",
                  {{"body", body}});
}

/// Statements that define what `call` of ScaleAt gives: `offset` where units subtract one, `scale` as a pair.
std::string ReadScale(const Plan& plan, const std::string& call) {
  if (!UnitOf(plan.format).offset)
    return fmt::format("const unsigned scale = AsPair(__half2half2({}));\n", call);
  std::string text = fmt::format("const unsigned scale_zero = {};\n", call);
  text += "const unsigned offset = __byte_perm(scale_zero, scale_zero, 0x3232);\n";
  if (ScalesPerGroup(plan)) text += "const unsigned scale = __byte_perm(scale_zero, scale_zero, 0x1010);\n";
  return text;
}

/// The scales of two rows of a unit that lies along outputs, as a pair.
std::string ScalePair(const Plan& plan, const std::string& column) {
  return fmt::format("AsPair(__halves2half2({}, {}))", ScaleCall(plan, "row + 2 * i", column),
                     ScaleCall(plan, "row + 2 * i + 1", column));
}

/// Decodes one fragment into `weights`, scaled and of the activations' type.
std::string Decode(const Plan& plan, bool piece_scales) {
  const WeightLayout& layout = plan.layout;
  const bool out_axis = layout.unit_rows > 1;
  const bool group = ScalesPerGroup(plan);
  const bool offset = UnitOf(plan.format).offset;
  const bool to_bf16 = plan.activation == DType::kBF16 && !UnitOf(plan.format).bf16;
  const int fragment = layout.FragmentUnits();
  const std::string column = "column" + UnitColumn(layout);
  const std::string u = fragment > 1 ? "u" : "0";
  const std::string one = fmt::format("weights[r][{}][i]", u);
  std::string scale_row;   // statements of a row
  std::string scale_unit;  // and of a unit
  if ((group || offset) && !out_axis && !piece_scales) {
    (ScalePerPiece(plan) || !group ? scale_row : scale_unit) =
        ReadScale(plan, ScaleCall(plan, "row", ScalePerPiece(plan) ? "column" : column));
  }
  std::string after;
  if (group) {
    const std::string of_pair = out_axis       ? piece_scales ? "piece_scales[r][i]" : ScalePair(plan, column)
                                      : piece_scales ? "piece_scales[r]"
                                               : "scale";
    after = FillText(R"(
      #pragma unroll
      for (int i = 0; i < kPairs; ++i) $one$ = MulPairs($one$, $scale$);
    )",
                     {{"one", one}, {"scale", of_pair}});
  }
  if (to_bf16)
    after += fmt::format("#pragma unroll\nfor (int i = 0; i < kPairs; ++i) {0} = ToBfloat16({0});\n", one);
  const std::string arguments =
      DecodeArguments(plan, CodebookIndex(plan, "row", column), piece_scales ? "offsets[r]" : "offset");
  const std::string unit = FillText(R"(
    $scale$
    DecodeUnit(words[r], $unit$, $arguments$weights[r][$u$]);
    $after$
  )",
                                    {{"scale", scale_unit},
                                     {"unit", UnitIndex(layout)},
                                     {"arguments", arguments},
                                     {"u", u},
                                     {"after", after}});
  std::string row;
  if ((!piece_scales && (group || offset)) || IndexesCodebooks(plan)) {
    row = out_axis ? "const int row = (" + RowOfSlot(layout) + ") * kUnitRows;"
                   : "const int row = " + RowOfSlot(layout) + ";";
  }
  return FillText(
      R"(
    unsigned weights[kRowSlots][kFragmentUnits][kPairs];
    #pragma unroll
    for (int r = 0; r < kRowSlots; ++r) {
      $row$
      $scale$
      $units$
    }
  )",
      {{"row", row}, {"scale", scale_row}, {"units", Unrolled("u", "kFragmentUnits", fragment, unit)}});
}

/// Scales of a piece of several fragments, read once.
std::string PieceScales(const Plan& plan) {
  if (plan.layout.unit_rows > 1) {
    return FillText(R"(
      unsigned piece_scales[kRowSlots][kPairs];  // of two rows each
      #pragma unroll
      for (int r = 0; r < kRowSlots; ++r) {
        const int row = ($row$) * kUnitRows;
        #pragma unroll
        for (int i = 0; i < kPairs; ++i) piece_scales[r][i] = $pair$;
      }
    )",
                    {{"row", RowOfSlot(plan.layout)}, {"pair", ScalePair(plan, "column")}});
  }
  const bool offset = UnitOf(plan.format).offset;
  return FillText(R"(
    unsigned piece_scales[kRowSlots];
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
                   {"read", ReadScale(plan, ScaleCall(plan, "row", "column"))},
                   {"offset", offset ? "offsets[r] = offset;" : ""}});
}

std::string ZeroShuffle(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  return FillText(
      R"(
    #pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const $element$* x_at =
          x_now + (j * 8 + row_lane) * kTokenPitch + piece * kPiecePitch$fragment$;
      unsigned xs[kFragmentColumns / 2];
      $read$
      #pragma unroll
      for (int i = 0; i < kFragmentColumns / 4; ++i) {
        #pragma unroll
        for (int t = 0; t < kRowFragments; ++t) {
          Mma(acc[t][j], $a0$, $a1$,
              $a2$, $a3$,
              xs[2 * i], xs[2 * i + 1]);
        }
      }
    }
  )",
      {{"element", ElementType(plan.activation)},
       {"fragment", layout.piece_units > layout.FragmentUnits() ? " + f * kFragmentColumns" : ""},
       {"read", ReadFragment(plan, "xs", "x_at")},
       {"a0", Pair(plan, "2 * t", "2 * i")},
       {"a1", Pair(plan, "2 * t + 1", "2 * i")},
       {"a2", Pair(plan, "2 * t", "2 * i + 1")},
       {"a3", Pair(plan, "2 * t + 1", "2 * i + 1")}});
}

std::string RegisterShuffle(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  return FillText(
      R"(
    // Blocks of eight columns: afterwards lane q has pair q of the blocks of all four lanes of the row.
    unsigned blocks[kRowSlots][kFragmentColumns / 8][4];
    #pragma unroll
    for (int r = 0; r < kRowSlots; ++r) {
      #pragma unroll
      for (int b = 0; b < kFragmentColumns / 8; ++b) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) blocks[r][b][i] = $pair$;
        TransposePairs(blocks[r][b]);
      }
    }
    #pragma unroll
    for (int b = 0; b < kFragmentColumns / 8; ++b) {
      #pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
        unsigned xs[4];
        LoadMatrices(xs, x_now + (j * 8 + lane % 8) * kTokenPitch +
                             (piece - column_lane + lane / 8) * kPieceColumns$fragment$ + 8 * b);
        #pragma unroll
        for (int t = 0; t < kRowFragments; ++t) {
          const unsigned (&upper)[4] = blocks[2 * t][b];
          const unsigned (&lower)[4] = blocks[2 * t + 1][b];
          Mma(acc[t][j], upper[0], lower[0], upper[1], lower[1], xs[0], xs[1]);
          Mma(acc[t][j], upper[2], lower[2], upper[3], lower[3], xs[2], xs[3]);
        }
      }
    }
  )",
      {{"pair", Pair(plan, "r", "4 * b + i")},
       {"fragment", layout.piece_units > layout.FragmentUnits() ? " + f * kFragmentColumns" : ""}});
}

/// Stores the fragment in `weights` to the warp's tile.
std::string StoreTile(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  const bool wide = layout.FragmentUnits() * layout.unit_cols % 8 == 0;
  const std::string to = fmt::format("to + {} * i", wide ? 8 : 4);
  std::string pairs;
  for (int i = 0; i < (wide ? 4 : 2); ++i) {
    const std::string at = fmt::format("{} * i{}", wide ? 4 : 2, i == 0 ? "" : fmt::format(" + {}", i));
    pairs += (i % 2 == 0 ? ",\n           " : ", ") + Pair(plan, "row", at);
  }
  const std::string store = fmt::format("StorePairs({}{});\n", to, pairs);
  return FillText(
      R"(
    #pragma unroll
    for (int row = 0; row < 2 * kRowFragments; ++row) {
      $element$* to =
          weight_tile + $tile_row$ * kWeightPitch + column_lane * kPieceColumns$fragment$;
      #pragma unroll
      for (int i = 0; i < kFragmentColumns / $vector$; ++i) {
        $store$
      }
    }
  )",
      {{"element", ElementType(plan.activation)},
       {"tile_row", TileRow(plan, "row")},
       {"fragment", layout.piece_units > layout.FragmentUnits() ? " + f * kFragmentColumns" : ""},
       {"vector", wide ? 8 : 4},
       {"store", store}});
}

/// Reads fragments A and B of a whole piece of the warp by ldmatrix, and multiplies.
std::string TileProducts(const Plan& plan) {
  // One ldmatrix.x4 brings fragment B of two mma; x2 that of one where the piece is an odd number of them.
  const int at_once = plan.layout.PieceCols() % 8 == 0 ? 2 : 1;
  return FillText(
      R"(
    #pragma unroll
    for (int s = 0; s < kPieceColumns / $s_columns$; ++s) {
      unsigned a[kRowFragments][$at_once$][4];
      #pragma unroll
      for (int t = 0; t < kRowFragments; ++t) {
        #pragma unroll
        for (int h = 0; h < $at_once$; ++h) {
          LoadMatrices(a[t][h],
                       weight_tile + (16 * t + lane % 16) * kWeightPitch + $a_column$ + lane / 16 * 8);
        }
      }
      #pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
        unsigned xs[$xs$];
        LoadMatrices(xs, x_now + (j * 8 + lane % 8) * kTokenPitch + (piece - column_lane) * kPieceColumns +
                             $columns$ * s + $block$ * 8);
        #pragma unroll
        for (int t = 0; t < kRowFragments; ++t) {
          #pragma unroll
          for (int h = 0; h < $at_once$; ++h) {
            Mma(acc[t][j], a[t][h][0], a[t][h][1], a[t][h][2], a[t][h][3], xs[2 * h], xs[2 * h + 1]);
          }
        }
      }
    }
  )",
      {{"s_columns", 4 * at_once},
       {"at_once", at_once},
       {"a_column", at_once == 2 ? "32 * s + 16 * h" : "16 * s"},
       {"xs", 2 * at_once},
       {"columns", 16 * at_once},
       {"block", at_once == 2 ? "lane / 8" : "lane / 8 % 2"}});
}

}  // namespace

std::string TileRow(const Plan& plan, const std::string& row) {
  if (plan.layout.unit_rows == 1) return fmt::format("({} * kRowLanes + row_lane)", row);
  return fmt::format("TileRow({}, row_lane)", row);
}

std::set<std::string> MmaBlocks(const Plan& plan) {
  const bool bf16 = plan.activation == DType::kBF16;
  std::set<std::string> blocks = {"pairs", bf16 ? "mma_bf16" : "mma_f16"};
  if (ScalesPerGroup(plan)) blocks.insert("pairs_mul");
  if (bf16 && !UnitOf(plan.format).bf16) blocks.insert("pairs_to_bf16");
  if (plan.fusion != Fusion::kZeroShuffle) blocks.insert("load_matrices_4");
  if (plan.fusion == Fusion::kRegisterShuffle) blocks.insert("transpose_pairs");
  if (plan.fusion == Fusion::kShared) {
    if (plan.layout.PieceCols() % 8 != 0) blocks.insert("load_matrices_2");
    const bool wide = plan.layout.FragmentUnits() * plan.layout.unit_cols % 8 == 0;
    blocks.insert(wide ? "store_pairs_4" : "store_pairs_2");
  }
  return blocks;
}

std::string MmaFunctions(const Plan& plan) {
  const std::string tile_row = plan.layout.unit_rows == 1 ? ""
                                                          : FillText(R"(
    // The row of a warp's tile that is row `row` of a lane: units follow each other, their rows too.
    __device__ __forceinline__ int TileRow(int row, int row_lane) {
      return (row / kUnitRows * kRowLanes + row_lane) * kUnitRows + row % kUnitRows;
    }
  )",
                                                                     {});
  return JoinTexts({WeightPairFunction(plan), tile_row});
}

std::string MmaProducts(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  const int fragments = layout.piece_units / layout.FragmentUnits();
  const bool piece_scales = ScalePerPiece(plan) && fragments > 1;
  const bool shared = plan.fusion == Fusion::kShared;
  const std::string products = shared                                    ? StoreTile(plan)
                               : plan.fusion == Fusion::kRegisterShuffle ? RegisterShuffle(plan)
                                                                         : ZeroShuffle(plan);
  const std::string fragment = Decode(plan, piece_scales) + products;
  return FillText(
      R"(
    #pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int piece = (warp_k * kPieces + p) * kColumnLanes + column_lane;
      $column$
      $piece_scales$
      $before$
      $fragments$
      $after$
    }
  )",
      {{"column", ScalesPerGroup(plan) || IndexesCodebooks(plan)
                      ? "const int column = first_column + piece * kPieceColumns;"
                      : ""},
       {"piece_scales", piece_scales ? PieceScales(plan) : std::string()},
       {"before", shared ? "__syncwarp();  // the warp is done with the tile of the last piece" : ""},
       {"fragments", Unrolled("f", "kPieceUnits / kFragmentUnits", fragments, fragment)},
       {"after", shared ? "__syncwarp();\n" + TileProducts(plan) : std::string()}});
}

}  // namespace vqllm::internal
