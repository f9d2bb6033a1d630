#pragma once

#include <cstdint>
#include <string_view>

#include "codegen/gpu.h"
#include "codegen/kv/layout.h"
#include "codegen/request.h"

namespace vqllm {

enum class KvOp : uint8_t {
  kAttention,  ///< attention of 1 to 8 tokens a row over the cache, split over the context
  kAppend,     ///< kv_append: rotate, encode and store keys and values
  kPrefill,    ///< attention_prefill: attention of many tokens a row over the cache on tensor cores
};

/// Choices of a plan that the caller fixes; 0 (-1 for computations) leaves the choice to the planner.
struct KvPins {
  int warps = 0;           ///< of a block
  int slots = 0;           ///< tokens that a lane has under way at once
  int tile = 0;            ///< attention: queries of a block; kv_append: tokens of a block
  int split_tokens = 0;    ///< attention: context of a block
  int key_compute = -1;    ///< a KvCompute
  int value_compute = -1;  ///< a KvCompute
};

/// What is wanted of a KV cache: an op, the cache, the queries, a GPU.
struct KvRequest {
  KvOp op = KvOp::kAttention;
  KvShape shape;
  int group = 1;     ///< query heads of a KV head
  int q_tokens = 1;  ///< most tokens of a row: 1..8 (attention), else 1..shape.chunk
  int rows = 1;      ///< sequences of a batch that the plan is weighed for; a launch may have fewer
  DType activation = DType::kF16;  ///< of q, k, v and out: fp16 or bf16
  Level level = Level::kBest;
  KvPins pins;
  GpuSpec gpu;
};

const char* ToString(KvOp op);
/// True for a word that ParseKvOp takes.
bool IsKvOp(std::string_view text);
/// Throws Error that lists the allowed words.
KvOp ParseKvOp(std::string_view text);

/// Throws Error that names the field of a request that is out of range.
void Validate(const KvRequest& request);

}  // namespace vqllm
