#include "codegen/kv/generate.h"

#include "codegen/ops/kv.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

std::string Plain(const std::string& name) {
  std::string out;
  for (const char c : name) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
    out += plain ? c : '_';
  }
  return out;
}

}  // namespace

std::string GeneratedKv::FileName() const {
  const KvShape& shape = plan.shape;
  std::string format = Plain(shape.key.name);
  if (shape.value != shape.key) format += fmt::format("+{}", Plain(shape.value.name));
  return fmt::format("{}-{}-{}x{}x{}-c{}-sm_{}.cu", ToString(plan.op), format, shape.kv_heads, plan.group,
                     shape.head_dim, shape.context, plan.arch);
}

GeneratedKv Generate(const KvRequest& request) {
  GeneratedKv generated;
  generated.plan = MakeKvPlan(request);
  generated.text = EmitKvFile(generated.plan);
  return generated;
}

CachedKernel Build(const GeneratedKv& generated, const KernelCache& cache) {
  const KvPlan& plan = generated.plan;
  CachedKernel built = cache.Get(generated.text, generated.FileName(),
                                 {.arch = fmt::format("sm_{}", plan.arch)}, ToJson(plan));
  for (const KernelResources& kernel : built.kernel.kernels) {
    if (kernel.spill_bytes > 0) {
      Fail("{}: kernel {}: found {} bytes of spills at {} registers, allowed: 0", generated.FileName(),
           kernel.kernel, kernel.spill_bytes, kernel.registers);
    }
  }
  return built;
}

}  // namespace vqllm
