#include "codegen/ops/kv.h"
#include "vq/base/error.h"

namespace vqllm::internal {

KernelText EmitAttentionPrefill(const KvPlan&) { Fail("attention_prefill: not yet"); }

}  // namespace vqllm::internal
