#pragma once

#include <set>
#include <string>

#include "codegen/decode/decoder.h"
#include "codegen/plan.h"

namespace vqllm {

/// One emitted kernel file is put together from these.
struct KernelText {
  std::set<std::string> blocks;  ///< device blocks used
  std::string constants;
  std::string functions;
  std::string kernels;
};

/// An operation: one file in codegen/ops each.
struct Op {
  OpKind kind;
  const char* formula;  ///< for the banner
  KernelText (*emit)(const Plan& plan);
};

/// The op of a kind; the table of registry.cc.
const Op& OpOf(OpKind kind);

/// The whole file: banner, plan, layout, constants, device blocks, decoder, kernels. The same plan gives the
/// same bytes.
std::string EmitFile(const Plan& plan);

namespace internal {
KernelText EmitDequant(const Plan& plan);
KernelText EmitLinear(const Plan& plan);  ///< gemv and gemm: one of the two below
KernelText EmitFmaKernel(const Plan& plan);
KernelText EmitMmaKernel(const Plan& plan);

/// Parts that the kernels share.
std::string ElementType(DType dtype);                     ///< "__half" or "__nv_bfloat16"
std::string Parameters(const Plan& plan, size_t launch);  ///< declarations, comma and line break between
std::string LayoutConstants(const Plan& plan);
std::string StepConstants(const Plan& plan);
std::string CodebookStage(const Plan& plan);  ///< call of LoadCodebook, or nothing
std::string CodebookIndexExpression(const Plan& plan, const std::string& row, const std::string& col);
std::string ScaleFunction(const Plan& plan);         ///< ScaleAt(scales, row, col), or nothing
std::string WeightType(const WeightLayout& layout);  ///< "uint4", "uint2", "unsigned"
std::string SumPartialsKernel(const Plan& plan);
/// Conversion of a float to the activation type: "__float2half_rn" or "__float2bfloat16_rn".
std::string RoundCall(DType dtype);
bool ScalesPerGroup(const Plan& plan);
bool ScalesPerOutput(const Plan& plan);
bool HasFactor(const Plan& plan);
/// True where one scale covers a piece; else each unit has its own.
bool ScalePerPiece(const Plan& plan);
}  // namespace internal
}  // namespace vqllm
