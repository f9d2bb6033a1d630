#pragma once

#include <string>

#include "codegen/cache.h"
#include "codegen/kv/planner.h"

namespace vqllm {

/// A planned and written kernel file of an op on a KV cache.
struct GeneratedKv {
  KvPlan plan;
  std::string text;

  /// A name for messages and files: "attention-cq-4-8x4x128-c4096-sm_80.cu".
  std::string FileName() const;
};

/// Request -> plan -> CUDA text. Throws Error as MakeKvPlan does.
GeneratedKv Generate(const KvRequest& request);

/// The text compiled for the plan's arch, through the cache. Throws Error where it does not compile or
/// spills.
CachedKernel Build(const GeneratedKv& generated, const KernelCache& cache);

}  // namespace vqllm
