#include "codegen/generate.h"

#include "codegen/op.h"
#include "vq/base/error.h"

namespace vqllm {

std::string Generated::FileName() const {
  std::string format;
  for (const char c : plan().format.name) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
    format += plain ? c : '_';
  }
  return fmt::format("{}-{}-{}x{}x{}-sm_{}.cu", ToString(plan().op), format, plan().m, plan().n, plan().k,
                     plan().arch);
}

Generated Generate(const Request& request) {
  Generated generated;
  generated.planned = MakePlan(request, 0);
  generated.text = EmitFile(generated.plan());
  return generated;
}

CachedKernel Build(const Generated& generated, const KernelCache& cache) {
  const Plan& plan = generated.plan();
  CachedKernel built =
      cache.Get(generated.text, generated.FileName(),
                {.arch = fmt::format("sm_{}", plan.arch), .flags = {"-lineinfo"}}, ToJson(plan));
  for (const KernelResources& kernel : built.kernel.kernels) {
    if (kernel.spill_bytes > 0) {
      Fail("{}: kernel {}: found {} bytes of spills at {} registers, allowed: 0", generated.FileName(),
           kernel.kernel, kernel.spill_bytes, kernel.registers);
    }
  }
  return built;
}

}  // namespace vqllm
