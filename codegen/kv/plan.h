#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/kv/request.h"
#include "codegen/plan.h"

namespace vqllm {

/// What the codes of a side are turned into.
enum class KvCompute : uint8_t {
  kDequantise,  ///< values, multiplied with q or with the probabilities
  kCodes,  ///< keys: a table of q times every entry is read; values: a histogram of probabilities by code
};

/// One side of a cache in an attention kernel.
struct KvSidePlan {
  KvSideLayout layout;
  KvCompute compute = KvCompute::kDequantise;
  /// Table: the tier of each stage. `held` stays 0: a lane has codebooks of its own, so its registers would
  /// have to hold whole entries.
  std::vector<StageTier> stages;
  /// Token lanes of a warp take the units of a slice in different orders, so that those of one step are in
  /// different banks. Record and codebooks stay as they are.
  bool turned = false;

  bool Codes() const { return compute == KvCompute::kCodes; }
  /// Entries of all stages.
  int Entries() const;
  /// Entries in shared memory, whole 16-byte words.
  int EntryBytes() const;
  bool operator==(const KvSidePlan&) const = default;
};

/// Every choice that an emitted attention, kv_append or attention_prefill file rests on. Plain data: the same
/// plan gives the same bytes.
///
/// Launches: grids are for `rows` sequences of `context` tokens. A caller may launch fewer: kernel attention
/// has grid (x, splits, rows) and only needs ceil(longest row / split_tokens) stored splits (plus one where
/// ReadsExact()); kv_append has grid (x, token tiles, rows), merge_splits (query heads, q_tokens, rows),
/// attention_prefill (x, query tiles, rows).
struct KvPlan {
  KvOp op = KvOp::kAttention;
  KvShape shape;
  int group = 1;
  int q_tokens = 1;
  int rows = 1;
  DType activation = DType::kF16;
  std::string gpu;
  int arch = 80;
  Level level = Level::kBest;

  KvSidePlan key;
  KvSidePlan value;
  int warps = 4;
  int slots = 2;  ///< attention: tokens that a lane has under way at once
  int tile = 1;   ///< attention, prefill: queries (token x head of the group) of a block; kv_append: tokens
  int split_tokens = 0;  ///< attention: context of a block, whole pages
  int key_tile = 0;      ///< attention_prefill: tokens of the context that are decoded at once

  // Derived by CompleteKvPlan.
  int lanes = 32;       ///< lanes that share a token
  int queries = 1;      ///< q_tokens * group
  int query_tiles = 1;  ///< blocks that share a KV head's queries
  int splits = 1;       ///< blocks of the stored context, the block of the exact copies not counted
  int key_bytes = 0;    ///< in shared memory: entries of keys, or products of the queries with every entry
  int value_bytes = 0;  ///< the same: entries of values, or the lanes' histograms
  int query_bytes = 0;  ///< attention: rotated queries as fp32
  int page_bytes = 0;   ///< staged page table
  int state_bytes = 0;  ///< softmax states of the warps; overlays all others but histograms
  int shared_bytes = 0;
  int register_budget = 0;
  int min_blocks = 1;

  std::vector<KernelLaunch> launches;

  int Threads() const { return 32 * warps; }
  int Heads() const { return shape.kv_heads * group; }
  /// Lane groups that see tokens of their own, each with a softmax state until the block's end.
  int TokenLanes() const { return 32 / lanes; }
  /// Byte of the staged queries, the page table and the states in shared memory.
  int QueryAt() const { return key_bytes + value_bytes; }
  int PageAt() const { return QueryAt() + query_bytes; }
  int StateAt() const { return value.Codes() ? PageAt() + page_bytes : 0; }
  /// True where the cache keeps exact copies.
  bool KeepsExact() const { return shape.ExactTokens() > 0; }
  /// True where queries of the op read exact copies of recent tokens.
  bool ReadsRecent() const { return shape.window > 0 || (op == KvOp::kPrefill && shape.exact_chunk); }
  /// True where queries read exact copies: in a decode step they are one more split.
  bool ReadsExact() const { return shape.sinks > 0 || ReadsRecent(); }
  /// Blocks that share a query: those of the stored context and, where there are, of the exact copies.
  int AllSplits() const { return splits + (ReadsExact() ? 1 : 0); }
  /// Blocks of the stored context at the full grid.
  double StoredBlocks() const { return static_cast<double>(shape.kv_heads) * query_tiles * splits * rows; }
  /// True where blocks share a query: their results go through memory and kernel merge_splits.
  bool Merges() const { return AllSplits() > 1; }
  /// Floats of the workspace `partial` [row][q token][head][split][head_dim]; `partial_lse` has as many
  /// without head_dim.
  int64_t PartialFloats(int launched_rows) const {
    return int64_t{launched_rows} * q_tokens * Heads() * AllSplits() * shape.head_dim;
  }
};

/// Whether a layout's units can be taken in turned order: a slice of several units, whole, within one word.
bool CanTurn(const KvSideLayout& layout);

/// Computes the derived members. Throws Error where the plan does not fit the arch.
void CompleteKvPlan(KvPlan& plan, const GpuSpec& gpu);

/// Canonical JSON: fixed order of keys, no spaces, no floating point.
std::string ToJson(const KvPlan& plan);

const char* ToString(KvCompute compute);

}  // namespace vqllm
