// Activations: staged in shared memory, read by lanes.
#include <fmt/format.h>

#include "codegen/ops/parts.h"
#include "codegen/text.h"

namespace vqllm::internal {
namespace {

/// What one thread copies at once.
struct CopyVector {
  const char* type;
  const char* zero;
};
CopyVector VectorOf(const Plan& plan) {
  switch (plan.x_vector) {
    case 8:
      return {"uint4", "make_uint4(0, 0, 0, 0)"};
    case 4:
      return {"uint2", "make_uint2(0, 0)"};
    case 2:
      return {"unsigned", "0u"};
    default:
      return {"unsigned short", "0"};
  }
}

}  // namespace

std::string ActivationConstants(const Plan& plan) {
  return FillText(
      R"(
    constexpr int kM = $m$;  // tokens
    constexpr int kTokens = $tokens$;  // of a block
    constexpr int kPiecePitch = $piece_pitch$;
    constexpr int kTokenPitch = $token_pitch$;
    constexpr int kFragmentUnits = $fragment$;  // units whose activations are read at once
    constexpr int kFragmentColumns = kFragmentUnits * kUnitColumns;
    $codebook$
  )",
      {{"m", plan.m},
       {"tokens", plan.token_tile},
       {"piece_pitch", plan.piece_pitch},
       {"token_pitch", plan.token_pitch},
       {"fragment", plan.layout.FragmentUnits()},
       {"codebook", plan.codebook_bytes > 0
                        ? fmt::format("constexpr int kCodebookBytes = {};  // before the activations",
                                      plan.codebook_bytes)
                        : std::string()}});
}

std::set<std::string> StageBlocks(const Plan& plan, bool async) {
  if (!async || plan.x_vector == 1) return {};
  return {"copy_pipeline", plan.x_vector == 8   ? "copy_async"
                           : plan.x_vector == 4 ? "copy_async_8"
                                                : "copy_async_4"};
}

std::string StageFunction(const Plan& plan, bool async) {
  const CopyVector vector = VectorOf(plan);
  const bool token_guard = plan.m % plan.token_tile != 0;
  const bool copies_async = async && plan.x_vector > 1;
  const std::string copy = FillText(copies_async ? R"(
      CopyAsync(reinterpret_cast<$type$*>(to), reinterpret_cast<const $type$*>(inside ? from : x), inside);
    )"
                                                 : R"(
      *reinterpret_cast<$type$*>(to) = inside ? __ldg(reinterpret_cast<const $type$*>(from)) : $zero$;
    )",
                                    {{"type", vector.type}, {"zero", vector.zero}});
  const std::string zero_piece = FillText(R"(
      // Lanes without a chunk multiply with the zeros of one more piece.
      for (int i = threadIdx.x; i < kTokens * kPieceColumns; i += kThreads) {
        to_shared[i / kPieceColumns * kTokenPitch + kStepPieces * kPiecePitch + i % kPieceColumns] = $round$(0.0f);
      }
    )",
                                          {{"round", RoundCall(plan.activation)}});
  return FillText(
      R"(
    // $verb$ kStepColumns activations of each token, from `first_column` on; zeros behind the last column$tokens$.
    __device__ __forceinline__ void StageActivations(const $element$* __restrict__ x, $element$* to_shared,
                                                     int first_column, int first_token) {
      for (int i = threadIdx.x; i < kTokens * (kStepColumns / $v$); i += kThreads) {
        const int t = i / (kStepColumns / $v$);
        const int c = i % (kStepColumns / $v$) * $v$;
        const bool inside = first_column + c < kK$guard$;
        const $element$* from = x + (first_token + t) * static_cast<long long>(kK) + first_column + c;
        $element$* to = to_shared + t * kTokenPitch + $place$;
        $copy$
      }
      $zero_piece$
    }
  )",
      {{"verb", copies_async ? "Starts the copies of" : "Copies"},
       {"tokens", token_guard ? " and token" : ""},
       {"element", ElementType(plan.activation)},
       {"v", plan.x_vector},
       {"guard", token_guard ? " && first_token + t < kM" : ""},
       {"place", plan.piece_pitch == plan.layout.PieceCols()
                     ? "c"
                     : "c / kPieceColumns * kPiecePitch + c % kPieceColumns"},
       {"copy", copy},
       {"zero_piece", plan.ragged && plan.compute == Compute::kFma ? zero_piece : std::string()}});
}

std::string ReadFragment(const Plan& plan, const std::string& into, const std::string& from) {
  const int columns = plan.layout.FragmentUnits() * plan.layout.unit_cols;
  const int vector = columns % 8 == 0 ? 8 : 4;
  const bool one = columns == vector;
  std::string read = fmt::format("const {0} some = *reinterpret_cast<const {0}*>({1}{2});\n",
                                 vector == 8 ? "uint4" : "uint2", from,
                                 one ? std::string() : fmt::format(" + {} * i", vector));
  for (int w = 0; w < vector / 2; ++w) {
    const std::string at = one      ? std::to_string(w)
                           : w == 0 ? fmt::format("{} * i", vector / 2)
                                    : fmt::format("{} * i + {}", vector / 2, w);
    read += fmt::format("{}[{}] = some.{};\n", into, at, "xyzw"[w]);
  }
  if (one) return read;
  return FillText(R"(
    #pragma unroll
    for (int i = 0; i < kFragmentColumns / $vector$; ++i) {
      $read$
    }
  )",
                  {{"vector", vector}, {"read", read}});
}

}  // namespace vqllm::internal
