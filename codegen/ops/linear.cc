// gemv and gemm: one computation, two kernels; the plan says which.
#include "codegen/ops/parts.h"
#include "vq/base/check.h"

namespace vqllm::internal {

KernelText EmitLinear(const Plan& plan) {
  VQLLM_CHECK(plan.compute != Compute::kStore);
  return plan.compute == Compute::kMma ? EmitMmaKernel(plan) : EmitFmaKernel(plan);
}

}  // namespace vqllm::internal
