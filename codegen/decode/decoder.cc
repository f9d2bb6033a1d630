#include "codegen/decode/decoder.h"

#include "vq/base/check.h"

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

}  // namespace vqllm
