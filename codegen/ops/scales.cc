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
  return FillText(
      R"(
    // The scale$zero$ of weight (row, column); padding reads the last one.
    __device__ __forceinline__ $type$ ScaleAt(const $type$* __restrict__ scales, int row$parameter$) {
      return __ldg(scales + min(row, kN - 1)$groups$$column$);
    }
  )",
      {{"zero", offset ? " (low half) and 1024 + zero point (high half)" : ""},
       {"type", offset ? "unsigned" : "__half"},
       {"parameter", ScalesPerGroup(plan) ? ", int column" : ""},
       {"groups", ScalesPerGroup(plan) ? fmt::format(" * {}", ScaleGroups(f, plan.k)) : std::string()},
       {"column",
        ScalesPerGroup(plan) ? fmt::format(" + min(column, kK - 1) / {}", f.group) : std::string()}});
}

std::string ScaleCall(const Plan& plan, const std::string& row, const std::string& col) {
  return ScalesPerGroup(plan) ? fmt::format("ScaleAt(scales, {}, {})", row, col)
                              : fmt::format("ScaleAt(scales, {})", row);
}

}  // namespace vqllm::internal
