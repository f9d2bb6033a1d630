#pragma once

#include <string>

#include "codegen/kv/plan.h"

// Parts of kernel attention.
namespace vqllm::internal {

/// Tokens of one kind: from the pages, or the exact copies.
struct AttentionStream {
  const char* name;  // of the function
  const char* what;  // for its comment
  std::string key;   // readers
  std::string value;
  const KvSidePlan& key_side;
  const KvSidePlan& value_side;
  bool exact;
};

/// Attend<name>: streams tokens past the queries of a block and leaves each warp's softmax in shared memory.
std::string AttentionStreamFunction(const KvPlan& plan, const AttentionStream& stream);

/// Its last step: joins the token lanes of a warp, and leaves the warp's state in shared memory.
std::string KeepState(const KvPlan& plan, const AttentionStream& stream);

/// The same with histograms of probabilities instead of sums of values: counts of a lane start at 0, tokens
/// are counted, and in the end all lanes' counts meet the entries and leave one state of the block.
std::string ClearCounts();
std::string CountTokens();
std::string KeepCounts(const KvPlan& plan);

/// Kernel merge_splits.
std::string MergeKernel(const KvPlan& plan);

}  // namespace vqllm::internal
