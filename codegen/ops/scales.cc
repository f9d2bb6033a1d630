// Scales of weights, and the zero points that come with them.
#include <fmt/format.h>

#include "codegen/ops/parts.h"
#include "codegen/text.h"

namespace vqllm::internal {

bool ScalesPerGroup(const Plan& plan) { return plan.format.scale == ScaleKind::kGroup; }
bool ScalesPerOutput(const Plan& plan) { return plan.format.scale == ScaleKind::kPerOutput; }
bool HasFactor(const Plan& plan) { return plan.format.scale == ScaleKind::kPerTensor; }
bool ScalePerPiece(const Plan& plan) {
  return ScalesPerGroup(plan) && plan.format.group % plan.layout.PieceCols() == 0;
}

std::string ScaleFunction(const Plan& plan) {
  const Format& f = plan.format;
  const bool offset = UnitOf(f).offset;
  if (!ScalesPerGroup(plan) && !offset) return "";
  const char* type = offset ? "unsigned" : "__half";
  const char* zero = offset ? " (low half) and 1024 + zero point (high half)" : "";
  if (!ScalesPerGroup(plan)) {
    return FillText(
        R"(
      // The scale$zero$ of a row; padding reads the last one.
      __device__ __forceinline__ $type$ ScaleAt(const $type$* __restrict__ scales, int row) {
        return __ldg(scales + min(row, kN - 1));
      }
    )",
        {{"zero", zero}, {"type", type}});
  }
  return FillText(
      R"(
    // The scale$zero$ of weight (row, column); padding reads the last one.
    // Scales: [row tile][group of $group$ columns][row of the tile].
    __device__ __forceinline__ $type$ ScaleAt(const $type$* __restrict__ scales, int row, int column) {
      const int inside = min(row, kN - 1);
      const int group = min(column, kK - 1) / $group$;
      return __ldg(scales + (inside / $rows$ * $groups$ + group) * $rows$ + inside % $rows$);
    }
  )",
      {{"zero", zero},
       {"type", type},
       {"group", f.group},
       {"groups", ScaleGroups(f, plan.k)},
       {"rows", plan.layout.TileRows()}});
}

std::string ScaleCall(const Plan& plan, const std::string& row, const std::string& col) {
  return ScalesPerGroup(plan) ? fmt::format("ScaleAt(scales, {}, {})", row, col)
                              : fmt::format("ScaleAt(scales, {})", row);
}

}  // namespace vqllm::internal
