#include "codegen/decode/decoder.h"

#include "vq/base/check.h"
#include "vq/tensor.h"

namespace vqllm {

UnitShape UnitOf(const Format& f) {
  UnitShape unit;
  switch (f.kind) {
    case FormatKind::kDense:
      unit.bits = 128;
      unit.bf16 = f.dtype == DType::kBF16;
      break;
    case FormatKind::kInt:
      unit.cols = ScalarUnitCols(f.bits, f.scale == ScaleKind::kGroup ? f.group : 0);
      unit.bits = unit.cols * f.bits;
      unit.offset = !f.symmetric;
      break;
    case FormatKind::kTable:
    case FormatKind::kLattice:
      unit.rows = f.axis == Axis::kOut ? f.subvector : 1;
      unit.cols = f.axis == Axis::kOut ? 1 : f.subvector;
      for (int stage = 0; stage < f.stages(); ++stage) unit.bits += f.CodeBits(stage);
      break;
  }
  return unit;
}

bool HasCodebook(const Format& f) { return f.kind == FormatKind::kTable || f.kind == FormatKind::kLattice; }

bool IndexesCodebooks(const Plan& plan) {
  return plan.format.kind == FormatKind::kTable && plan.format.scope.kind != ScopeKind::kTensor &&
         !plan.segmented;
}

DecoderText EmitDecoder(const Plan& plan) {
  switch (plan.format.kind) {
    case FormatKind::kTable:
      return internal::EmitLookup(plan);
    case FormatKind::kLattice:
      return internal::EmitLattice(plan);
    case FormatKind::kInt:
    case FormatKind::kDense:
      return internal::EmitScalar(plan);
  }
  VQLLM_CHECK(false);
}

std::string DecodeArguments(const Plan& plan, const std::string& index, const std::string& offset) {
  std::string arguments;
  if (HasCodebook(plan.format)) arguments += "book, ";
  if (IndexesCodebooks(plan)) arguments += index + ", ";
  if (UnitOf(plan.format).offset) arguments += offset + ", ";
  return arguments;
}

bool CodesCrossWords(const Plan& plan) {
  const int unit_bits = UnitOf(plan.format).bits;
  for (int unit = 0; unit < plan.layout.ChunkUnits(); ++unit) {
    int at = unit * unit_bits;
    for (const StageTier& tier : plan.stages) {
      if (at % 32 + tier.code_bits > 32) return true;
      at += tier.code_bits;
    }
  }
  return false;
}

std::string SegmentCodebook(const Plan& plan) {
  if (!plan.segmented) return "";
  const Scope& scope = plan.format.scope;
  const std::string segment = plan.layout.segments > 1 ? "segment" : "0";
  if (scope.kind != ScopeKind::kTile || scope.rows >= plan.n) return segment;
  const int across = (plan.k + scope.cols - 1) / scope.cols;
  const int blocks = scope.rows / plan.BlockRows();  // of a row of tiles
  return fmt::format("blockIdx.x{} * {} + {}", blocks > 1 ? fmt::format(" / {}", blocks) : "", across,
                     segment);
}

std::string LoadCodebookCall(const Plan& plan) {
  if (!HasCodebook(plan.format)) return "";
  bool shared = false;
  for (const StageTier& tier : plan.stages) shared |= tier.shared > 0;
  const int entry_words = plan.format.kind == FormatKind::kTable ? EntryWords(plan.format.subvector) : 1;
  const std::string type = entry_words >= 4 ? "uint4" : entry_words == 2 ? "uint2" : "unsigned";
  std::string arguments = "codebooks";
  if (plan.format.kind == FormatKind::kLattice && plan.format.stages() == 2) arguments += ", factors";
  if (shared) arguments += fmt::format(", reinterpret_cast<{}*>(shared)", type);
  if (plan.segmented) arguments += ", " + SegmentCodebook(plan);
  return fmt::format("LoadCodebook({})", arguments);
}

std::string CodebookIndex(const Plan& plan, const std::string& row, const std::string& col) {
  const Scope& scope = plan.format.scope;
  // Padding lies behind the last row and column; its units read the last codebook.
  const std::string r = fmt::format("min({}, kN - 1)", row);
  const std::string c = fmt::format("min({}, kK - 1)", col);
  switch (scope.kind) {
    case ScopeKind::kTensor:
      return "";
    case ScopeKind::kTile:
      return fmt::format("{} / {} * {} + {} / {}", r, scope.rows, (plan.k + scope.cols - 1) / scope.cols, c,
                         scope.cols);
    case ScopeKind::kInGroup:
      return fmt::format("{} / {}", c, scope.cols);
    case ScopeKind::kHeadChannel:
      return fmt::format("{} / {}", c, plan.format.subvector);
  }
  VQLLM_CHECK(false);
}

}  // namespace vqllm
