#pragma once

#include <vector>

#include "codegen/kv/plan.h"
#include "codegen/kv/request.h"

namespace vqllm {

/// Throws Error where the request is out of range or nothing fits the GPU.
KvPlan MakeKvPlan(const KvRequest& request);

}  // namespace vqllm
