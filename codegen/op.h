#pragma once

#include <set>
#include <string>

#include "codegen/decode/decoder.h"
#include "codegen/plan.h"
#include "codegen/traffic.h"

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
  Traffic (*traffic)(const Plan& plan);  ///< what the emitted kernels ask of memory
};

/// The op of a kind; the table of registry.cc.
const Op& OpOf(OpKind kind);

/// The whole file: banner, plan, layout, constants, device blocks, decoder, kernels. The same plan gives the
/// same bytes.
std::string EmitFile(const Plan& plan);

namespace internal {
KernelText EmitDequant(const Plan& plan);
KernelText EmitLinear(const Plan& plan);  ///< gemv and gemm: one of those below
KernelText EmitFmaKernel(const Plan& plan);
KernelText EmitMmaKernel(const Plan& plan);
KernelText EmitTableKernel(const Plan& plan);
Traffic DequantTraffic(const Plan& plan);
Traffic LinearTraffic(const Plan& plan);  ///< one of those below, as EmitLinear
Traffic FmaTraffic(const Plan& plan);
Traffic MmaTraffic(const Plan& plan);
Traffic TableTraffic(const Plan& plan);
}  // namespace internal
}  // namespace vqllm
