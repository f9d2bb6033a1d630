// y = x W^T by lookup tables (psum-books to CodeGEMM): the products of every entry
// with the activations of a subvector go to shared memory, made once for all rows of a block; then a code of
// W costs a load and an add. A lane works on rows of its own, so nothing is summed over lanes.
#include <fmt/format.h>

#include "codegen/ops/parts.h"
#include "codegen/text.h"

namespace vqllm::internal {
namespace {

int TableEntries(const Plan& plan) {
  int entries = 0;
  for (const StageTier& tier : plan.stages) entries += tier.entries;
  return entries;
}

std::string Constants(const Plan& plan) {
  const std::string own = FillText(R"(
    // Activations in shared memory, in their order: lanes that make a table read the same ones.
    $activations$

    // Tables: [subvector of a chunk][token][entry of all stages], the products of one chunk's columns.
    constexpr int kUnitBits = $unit_bits$;  // the codes of all stages of one subvector
    constexpr int kSubvectors = kPieces * kPieceUnits;
    constexpr int kTableEntries = $entries$;
    constexpr int kTableBytes = $table_bytes$;  // before the activations

    static_assert(kColumnLanes == 1, "a lane has rows of its own");
    static_assert(kK % $x_vector$ == 0, "a row of x is whole vectors");
  )",
                                   {{"activations", ActivationConstants(plan)},
                                    {"unit_bits", plan.layout.unit_bits},
                                    {"entries", TableEntries(plan)},
                                    {"table_bytes", plan.table_bytes},
                                    {"x_vector", plan.x_vector}});
  return JoinTexts({LayoutConstants(plan), StepConstants(plan), own});
}

/// Statements that add the products of `entry` and the activations at `near` to `sum`.
std::string Product(const Plan& plan) {
  const int v = plan.format.subvector;
  if (v % 2 != 0) {
    return FillText(R"(
      #pragma unroll
      for (int i = 0; i < kUnitColumns; ++i) {
        const float2 c = HalfFloats(entry[i / 2]);
        sum = fmaf(i % 2 == 0 ? c.x : c.y, $widen$(near[i]), sum);
      }
    )",
                    {{"widen", WidenCall(plan.activation)}});
  }
  const int words = v % 8 == 0 ? 4 : v % 4 == 0 ? 2 : 1;
  std::string read;
  if (words == 1) {
    read = "xs[i] = reinterpret_cast<const unsigned*>(near)[i];\n";
  } else {
    read = fmt::format("const uint{0} some = reinterpret_cast<const uint{0}*>(near)[i];\n", words);
    for (int w = 0; w < words; ++w)
      read +=
          fmt::format("xs[{} * i{}] = some.{};\n", words, w == 0 ? "" : fmt::format(" + {}", w), "xyzw"[w]);
  }
  return FillText(
      R"(
    unsigned xs[kPairs];
    #pragma unroll
    for (int i = 0; i < $reads$; ++i) {
      $read$
    }
    #pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float2 c = HalfFloats(entry[i]);
      const float2 a = $floats$(xs[i]);
      sum = fmaf(c.x, a.x, sum);
      sum = fmaf(c.y, a.y, sum);
    }
  )",
      {{"reads", v / 2 / words}, {"read", read}, {"floats", PairFloats(plan.activation == DType::kBF16)}});
}

std::string MakeTableFunction(const Plan& plan) {
  const int words = EntryWords(plan.format.subvector);
  const int vector = std::min(words, 4);
  const int pairs = (plan.format.subvector + 1) / 2;
  std::string read;
  for (int v = 0; v * vector < pairs; ++v) {
    const std::string at = words == vector ? "e"
                           : v == 0        ? fmt::format("{} * e", words / vector)
                                           : fmt::format("{} * e + {}", words / vector, v);
    if (vector == 1) {
      read += fmt::format("entry[0] = __ldg(codebook + {});\n", at);
      continue;
    }
    const std::string name = words == vector ? "some" : fmt::format("some{}", v);
    read += fmt::format("const uint{} {} = __ldg(codebook + {});\n", vector, name, at);
    for (int w = 0; w < vector && v * vector + w < pairs; ++w)
      read += fmt::format("entry[{}] = {}.{};\n", v * vector + w, name, "xyzw"[w]);
  }
  const std::string type = vector == 1 ? "unsigned" : fmt::format("uint{}", vector);
  return FillText(
      R"(
    // The products of all entries of one stage with the activations at `x_at`, of all tokens.
    $head$
      for (int e = threadIdx.x; e < entries; e += kThreads) {
        unsigned entry[kPairs];
        $read$
        $keep$
        for (int s = 0; s < kSubvectors; ++s) {
          #pragma unroll
          for (int t = 0; t < kTokens; ++t) {
            const $element$* near = x_at + t * kTokenPitch + s * kUnitColumns;
            float sum = 0;
            $product$
            table[(s * kTokens + t) * kTableEntries + e] = sum;
          }
        }
      }
    }
  )",
      {{"head", FunctionHead("__device__ __forceinline__ void MakeTable",
                             {fmt::format("const {}* __restrict__ codebook", type), "int entries",
                              fmt::format("const {}* x_at", ElementType(plan.activation)), "float* table"})},
       {"read", read},
       {"keep",
        plan.format.subvector % 4 == 2 && plan.format.subvector > 2
            ? "#pragma unroll 1  // reads of four bytes would be merged where they happen to be aligned"
            : ""},
       {"element", ElementType(plan.activation)},
       {"product", Product(plan)}});
}

/// Calls of MakeTable, stage after stage.
std::string MakeTables(const Plan& plan) {
  const int vectors = EntryWords(plan.format.subvector) / std::min(EntryWords(plan.format.subvector), 4);
  const int64_t books = CodebookCount(plan.format, plan.n, plan.k);
  const std::string book = SegmentCodebook(plan);
  std::string text;
  int64_t at = 0;
  int offset = 0;
  for (const StageTier& tier : plan.stages) {
    std::string from = "codebooks";
    if (at > 0) from += fmt::format(" + {}", at);
    if (!book.empty() && book != "0")
      from += fmt::format(" + static_cast<long long>({}) * {}", book, tier.entries * vectors);
    text += fmt::format("MakeTable({}, {}, x_at, table{});\n", from, tier.entries,
                        offset == 0 ? std::string() : fmt::format(" + {}", offset));
    at += books * tier.entries * vectors;
    offset += tier.entries;
  }
  return text;
}

/// Codes of the rows of a lane: a load and an add each.
std::string Lookups(const Plan& plan) {
  const bool group = ScalesPerGroup(plan);
  const std::string into = group ? "part[t]" : "acc[r][t]";
  std::string codes;
  std::string adds;
  int bit = 0;
  int offset = 0;
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const StageTier& tier = plan.stages[stage];
    codes += fmt::format("const unsigned code{} = Bits(words[r], s * kUnitBits{}, {});\n", stage,
                         bit == 0 ? std::string() : fmt::format(" + {}", bit), tier.code_bits);
    adds += fmt::format("{} += products[{}code{}];\n", into,
                        offset == 0 ? std::string() : fmt::format("{} + ", offset), stage);
    bit += tier.code_bits;
    offset += tier.entries;
  }
  const std::string scale = FillText(R"(
    const float scale = __half2float($call$);
    #pragma unroll
    for (int t = 0; t < kTokens; ++t) acc[r][t] = fmaf(scale, part[t], acc[r][t]);
  )",
                                     {{"call", ScaleCall(plan, RowOfSlot(plan.layout), "column")}});
  return FillText(R"(
    #pragma unroll
    for (int r = 0; r < kRowSlots; ++r) {
      $part$
      #pragma unroll
      for (int s = 0; s < kSubvectors; ++s) {
        $codes$
        #pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const float* products = table + (s * kTokens + t) * kTableEntries;
          $adds$
        }
      }
      $scale$
    }
  )",
                  {{"part", group ? "float part[kTokens] = {};" : ""},
                   {"codes", codes},
                   {"adds", adds},
                   {"scale", group ? scale : std::string()}});
}

}  // namespace

KernelText EmitTableKernel(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  KernelText out;
  out.blocks = {"pairs", "floats_f16", CodesCrossWords(plan) ? "bits_crossing" : "bits"};
  if (plan.activation == DType::kBF16) out.blocks.insert("floats_bf16");
  out.constants = Constants(plan);
  out.functions = JoinTexts({ScaleFunction(plan), StageFunction(plan, false), MakeTableFunction(plan)});
  const std::string active = layout.row_tiles % plan.warps_n == 0 ? "" : "tile < kRowTiles";
  const std::string at = fmt::format("tile_codes + ({}first_chunk + g) * kChunkVectors + row_lane",
                                     layout.segments > 1 ? "segment * kChunks + " : "");
  out.kernels =
      FillText(
          R"(
    $head$
      extern __shared__ __align__(16) unsigned char shared[];
      float* table = reinterpret_cast<float*>(shared);
      $element$* x_shared = reinterpret_cast<$element$*>(shared + kTableBytes);
      const int row_lane = threadIdx.x % 32;
      const int tile = blockIdx.x * $warps$ + threadIdx.x / 32;  // a warp works on one row tile
      const int first_row = tile * kRowSlots * kRowLanes;
      const int first_token = blockIdx.y * kTokens;
      const $type$* tile_codes = codes + static_cast<long long>(tile) * kTileVectors;

      float acc[kRowSlots][kTokens] = {};
      $block_steps$
      for (int step = $first_step$; step < $last_step$; ++step) {
        // 1. The activations of this step; of the last ones all tables are made.
        $step_start$
        StageActivations(x, x_shared, first_column, first_token);
        $groups$
        for (int g = 0; g < $group_count$; ++g) {
          // 2. Codes of all rows, under way while the table is made.
          $load_words$
          __syncthreads();  // the activations are there, and all warps are done with the last table

          // 3. The table of this chunk's columns.
          const $element$* x_at = x_shared + g * kPieces * kPieceColumns;
          $make_tables$
          __syncthreads();

          // 4. A load and an add for each code.
          $column$
          $lookups$
        }
      }

      // 5. Write.
      #pragma unroll
      for (int r = 0; r < kRowSlots; ++r) {
        const int row = $row$;
        #pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const int token = first_token + t;
          float sum = acc[r][t];
          $store$
        }
      }
    }
  )",
          {{"head", KernelHead(plan, 0, fmt::format("kThreads, {}", plan.min_blocks))},
           {"element", ElementType(plan.activation)},
           {"warps", plan.warps_n},
           {"type", WeightType(layout)},
           {"block_steps", BlockSteps(plan)},
           {"first_step", plan.split > 1 ? "first_step" : "0"},
           {"last_step", plan.split > 1 ? "last_step" : "kSteps"},
           {"step_start", BeginStep(plan, true)},
           {"groups", GroupsOfStep(plan) == "kStepGroups" ? std::string()
                                                          : "const int groups = " + GroupsOfStep(plan) + ";"},
           {"group_count", GroupsOfStep(plan) == "kStepGroups" ? "kStepGroups" : "groups"},
           {"load_words", LoadWords(plan, at, "kRowLanes", active)},
           {"make_tables", MakeTables(plan)},
           {"column",
            ScalesPerGroup(plan) ? "const int column = first_column + g * kPieces * kPieceColumns;" : ""},
           {"lookups", Lookups(plan)},
           {"row", RowOfSlot(layout)},
           {"store", StoreSum(plan, "")}}) +
      SumPartialsKernel(plan);
  return out;
}

}  // namespace vqllm::internal
