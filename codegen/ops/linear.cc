// gemv and gemm: one computation, three kernels; the plan says which.
#include "codegen/ops/parts.h"
#include "vq/base/check.h"

namespace vqllm::internal {

KernelText EmitLinear(const Plan& plan) {
  switch (plan.compute) {
    case Compute::kFma:
      return EmitFmaKernel(plan);
    case Compute::kMma:
      return EmitMmaKernel(plan);
    case Compute::kTable:
      return EmitTableKernel(plan);
    case Compute::kStore:
      break;
  }
  VQLLM_CHECK(false);
}

Traffic LinearTraffic(const Plan& plan) {
  switch (plan.compute) {
    case Compute::kFma:
      return FmaTraffic(plan);
    case Compute::kMma:
      return MmaTraffic(plan);
    case Compute::kTable:
      return TableTraffic(plan);
    case Compute::kStore:
      break;
  }
  VQLLM_CHECK(false);
}

}  // namespace vqllm::internal
