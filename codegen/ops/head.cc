// Types, and the heads of kernels.
#include <fmt/format.h>

#include "codegen/ops/parts.h"
#include "codegen/text.h"
#include "vq/base/check.h"

namespace vqllm::internal {
namespace {

std::string ParameterType(const Plan& plan, size_t launch, const std::string& name) {
  const std::string element = ElementType(plan.activation);
  if (name == "codes") return "const " + WeightType(plan.layout);
  if (name == "codebooks") {
    const int words = plan.format.kind == FormatKind::kTable ? EntryWords(plan.format.subvector) : 1;
    return words >= 4 ? "const uint4" : words == 2 ? "const uint2" : "const unsigned";
  }
  if (name == "scales") return UnitOf(plan.format).offset ? "const unsigned" : "const __half";
  if (name == "factors") return "const float";
  if (name == "x" || name == "bias") return "const " + element;
  if (name == "y" || name == "w") return element;
  if (name == "partial") return launch > 0 ? "const float" : "float";
  VQLLM_CHECK(false, "{}", name);
}

}  // namespace

std::string ElementType(DType dtype) { return dtype == DType::kBF16 ? "__nv_bfloat16" : "__half"; }
std::string RoundCall(DType dtype) {
  return dtype == DType::kBF16 ? "__float2bfloat16_rn" : "__float2half_rn";
}
std::string WidenCall(DType dtype) { return dtype == DType::kBF16 ? "__bfloat162float" : "__half2float"; }
std::string PairFloats(bool bf16) { return bf16 ? "Bfloat16Floats" : "HalfFloats"; }

std::string KernelHead(const Plan& plan, size_t launch, const std::string& bounds) {
  const KernelLaunch& kernel = plan.launches[launch];
  std::vector<std::string> parameters;
  for (const std::string& name : kernel.parameters)
    parameters.push_back(ParameterType(plan, launch, name) + "* __restrict__ " + name);
  return fmt::format("extern \"C\" __global__ void __launch_bounds__({})\n", bounds) +
         FunctionHead(kernel.kernel, parameters);
}

}  // namespace vqllm::internal
