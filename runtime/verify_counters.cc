#include "runtime/verify_counters.h"

#include "vq/base/check.h"

namespace vqllm::internal {
namespace {

/// Counted beside what is predicted.
constexpr ptx::Counter kMore[] = {ptx::Counter::kWarpInstructions, ptx::Counter::kAsyncCopyBytes,
                                  ptx::Counter::kDivergentBranches};

/// The counter of a predicted metric: they go by one name.
ptx::Counter CounterOf(Metric metric) {
  for (size_t i = 0; i < static_cast<size_t>(ptx::Counter::kCount); ++i) {
    const ptx::Counter counter = static_cast<ptx::Counter>(i);
    if (ptx::Describe(counter).name == NameOf(metric)) return counter;
  }
  VQLLM_CHECK(false, "{}", NameOf(metric));
}

}  // namespace

void ReportTraffic(const ptx::Counters& counters, const Traffic* predicted, VerifyReport& report) {
  for (const ptx::Counter counter : kMore)
    report.counters.emplace_back(ptx::Describe(counter).name, counters[counter]);
  for (size_t i = 0; i < static_cast<size_t>(Metric::kCount); ++i) {
    const Metric metric = static_cast<Metric>(i);
    report.counters.emplace_back(NameOf(metric), counters[CounterOf(metric)]);
    if (predicted != nullptr) report.predicted.emplace_back(NameOf(metric), (*predicted)[metric]);
  }
}

}  // namespace vqllm::internal
