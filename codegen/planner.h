#pragma once

#include <string>
#include <vector>

#include "codegen/cost.h"
#include "codegen/plan.h"
#include "codegen/request.h"

namespace vqllm {

/// A plan that was weighed, with its modelled time.
struct Candidate {
  Plan plan;
  PlanCounters counters;
  ModelledTime time;
};

struct PlanResult {
  Candidate best;
  std::vector<Candidate> runners_up;  ///< the next cheapest, cheapest first, at most `keep`
  int considered = 0;                 ///< candidates that were valid
};

enum class Search : uint8_t {
  kDescent,  ///< from a good start along one choice after the other: some hundred candidates, milliseconds
  kAll,      ///< every combination
};

/// Weighs candidates of the request's level, drops those that the GPU cannot run and takes the cheapest.
/// Throws Error where the request is out of range or nothing fits; the message tells why the last one failed.
PlanResult MakePlan(const Request& request, int keep = 4, Search search = Search::kDescent);

/// The plan as people read it: choices, slack, traffic, and why the runners-up lost.
std::string Explain(const Request& request, const PlanResult& result);

}  // namespace vqllm
