#pragma once

#include <string>

#include "codegen/cache.h"
#include "codegen/planner.h"

namespace vqllm {

/// A planned and written kernel file.
struct Generated {
  PlanResult planned;
  std::string text;

  const Plan& plan() const { return planned.best.plan; }
  /// A name for messages and files: "gemv-aqlm-2x8-1x4096x4096-sm_80.cu".
  std::string FileName() const;
};

/// Request -> plan -> CUDA text. Throws Error as MakePlan does.
Generated Generate(const Request& request);

/// The text compiled for the plan's arch, through the cache. Throws Error where it does not compile and where
/// ptxas exceeds the plan's budget: spills, or more registers than the resident blocks of the plan leave.
CachedKernel Build(const Generated& generated, const KernelCache& cache);

}  // namespace vqllm
