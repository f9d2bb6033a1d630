#pragma once

#include "codegen/cost.h"
#include "codegen/kv/plan.h"

namespace vqllm {

/// As PredictCounters for op attention: plan.rows sequences of shape.context tokens. Rows, splits and heads
/// that are alike are counted once.
PlanCounters PredictKvCounters(const KvPlan& plan);

/// As ModelTime, for op attention. Never measured.
ModelledTime ModelKvTime(const KvPlan& plan, const PlanCounters& counters, const GpuSpec& gpu);

/// Blocks a full deal would have over those of the busiest SM on every SM: 1 where each SM has as many.
double WaveEfficiency(const KvPlan& plan, const GpuSpec& gpu);

}  // namespace vqllm
