// Sums on their way out: scaled, then stored, or left for a second kernel to add up.
#include <fmt/format.h>

#include "codegen/ops/parts.h"
#include "codegen/text.h"

namespace vqllm::internal {

std::string StoreSum(const Plan& plan, const std::string& guard) {
  std::string text;
  if (ScalesPerOutput(plan)) {
    text += UnitOf(plan.format).offset ? "sum *= HalfFloats(ScaleAt(scales, row)).x;\n"
                                       : "sum *= __half2float(scales[row]);\n";
  }
  if (HasFactor(plan)) text += "sum *= factors[0];\n";
  if (plan.split > 1) {
    text += "partial[(blockIdx.z * kM + token) * static_cast<long long>(kN) + row] = sum;\n";
  } else {
    if (plan.bias) text += fmt::format("sum += {}(bias[row]);\n", WidenCall(plan.activation));
    text +=
        fmt::format("y[token * static_cast<long long>(kN) + row] = {}(sum);\n", RoundCall(plan.activation));
  }
  std::string condition = guard;
  const auto also = [&](const char* more) {
    condition += std::string(condition.empty() ? "" : " && ") + more;
  };
  if (static_cast<int64_t>(plan.launches[0].grid_x) * plan.BlockRows() != plan.n) also("row < kN");
  if (plan.m % plan.token_tile != 0) also("token < kM");
  if (condition.empty()) return text;
  return FillText(R"(
    if ($condition$) {
      $store$
    }
  )",
                  {{"condition", condition}, {"store", text}});
}

std::string SumPartialsKernel(const Plan& plan) {
  if (plan.split == 1) return "";
  return FillText(R"(

    // Adds the sums of the $split$ blocks that share an output, in the order of k: the same bits at every run.
    $head$
      const int i = blockIdx.x * $threads$ + threadIdx.x;
      if (i >= kM * kN) return;
      float sum = $start$;
      for (int s = 0; s < $split$; ++s) sum += partial[s * static_cast<long long>(kM * kN) + i];
      y[i] = $round$(sum);
    }
  )",
                  {{"split", plan.split},
                   {"head", KernelHead(plan, 1, std::to_string(plan.launches[1].threads))},
                   {"threads", plan.launches[1].threads},
                   {"start", plan.bias ? WidenCall(plan.activation) + "(bias[i % kN])" : "0"},
                   {"round", RoundCall(plan.activation)}});
}

}  // namespace vqllm::internal
