#pragma once

#include <span>

#include "codegen/kv/plan.h"
#include "codegen/traffic.h"

namespace vqllm {

/// What the kernels of op attention ask of memory for sequences of `lengths`, each with q_tokens queries at
/// its end, in closed form: as the interpreter counts it where the codes are spread evenly. Without exact
/// copies, which are one more split of fp16, and the angles that turning keys takes.
Traffic KvTraffic(const KvPlan& plan, std::span<const int> lengths);

/// Whether KvTraffic covers all that a plan's kernels do.
bool PredictsKvTraffic(const KvPlan& plan);

/// The same for plan.rows sequences of shape.context tokens: one stands for all that are alike, so that a
/// planner can weigh many plans. Sectors that neighbouring parts share may be counted twice.
Traffic EstimateKvTraffic(const KvPlan& plan);

namespace internal {

/// The parts of it that follow the text of attention_stream.cc and attention_counts.cc, for one block over
/// the stored tokens [begin, end).
Traffic StreamTraffic(const KvPlan& plan, int begin, int end);
/// FillKeyTable by one block; the queries are in shared memory.
Traffic FillTableTraffic(const KvPlan& plan);
Traffic KeepStateTraffic(const KvPlan& plan);
Traffic KeepCountsTraffic(const KvPlan& plan);
/// Distinct sectors of a side's codebooks that `tokens` tokens of a head touch outside shared memory, and
/// those that are copied into it.
double BookSectors(const KvSidePlan& side, double tokens);

/// A mask of warp `warp`'s threads below `count`.
inline WarpAccess ThreadsBelow(int warp, int count, auto&& at) {
  return WarpAccess::Of(
      [&](int lane) -> int64_t { return warp * 32 + lane < count ? at(warp * 32 + lane) : -1; });
}

}  // namespace internal
}  // namespace vqllm
