#pragma once

#include <string>

#include "codegen/kv/plan.h"
#include "codegen/ops/parts.h"

namespace vqllm {

/// The whole file of an op on a KV cache. The same plan gives the same bytes.
std::string EmitKvFile(const KvPlan& plan);

namespace internal {
KernelText EmitAttention(const KvPlan& plan);
KernelText EmitKvAppend(const KvPlan& plan);
KernelText EmitAttentionPrefill(const KvPlan& plan);

/// Parts that the kernels share.
std::string KvParameters(const KvPlan& plan, size_t launch);  ///< declarations
std::string KvConstants(const KvPlan& plan);                  ///< shape of the cache and of the queries
std::string KvRotation(const KvPlan& plan);  ///< ToFloat and Rotated(head, channel, [rope, position])
/// A statement that makes `position` of exact copy `t`, counted as KvExactToken does.
std::string KvExactPosition(const KvPlan& plan);
/// Statements that make `position` and `token`, its place in `exact`, of exact copy `t`, counted as `sinks`
/// first ones and those from position `recent` on.
std::string KvExactToken(const KvPlan& plan);
/// Struct Span and StoredSpan(row, split): which stored positions a split reads.
std::string KvSpans(const KvPlan& plan);
/// The arguments of Rotated behind the channel: ", rope, position" or nothing.
std::string KvRotationArguments(const KvPlan& plan, const std::string& position);
/// Codebooks in a kernel that has `key_books`, `value_books` and `shared`: statements that fill the staged
/// entries, from the start of `shared` on, and what functions that decode take, ", key_entries, value_books".
struct KvBooksText {
  std::string fill;
  std::string arguments;
};
KvBooksText KvBooks(const KvPlan& plan);
KvSidePlan ExactSide(const KvPlan& plan);
}  // namespace internal
}  // namespace vqllm
