#pragma once

#include "codegen/traffic.h"
#include "runtime/ptx/counters.h"
#include "runtime/verify.h"

namespace vqllm::internal {

/// Adds what was counted to a report, and beside it what a plan predicted, if anything.
void ReportTraffic(const ptx::Counters& counters, const Traffic* predicted, VerifyReport& report);

}  // namespace vqllm::internal
