#include "codegen/kv/request.h"

#include <algorithm>

#include "vq/base/error.h"

namespace vqllm {
namespace {

constexpr std::string_view kOps[] = {"attention", "kv_append", "attention_prefill"};

void CheckRange(const char* field, int found, int low, int high) {
  if (found < low || found > high) Fail("request: {}: found {}, allowed: {} to {}", field, found, low, high);
}

}  // namespace

const char* ToString(KvOp op) { return kOps[static_cast<size_t>(op)].data(); }
bool IsKvOp(std::string_view text) {
  return std::find(std::begin(kOps), std::end(kOps), text) != std::end(kOps);
}

KvOp ParseKvOp(std::string_view text) {
  const auto* found = std::find(std::begin(kOps), std::end(kOps), text);
  if (found == std::end(kOps))
    Fail("op: found \"{}\", allowed: {}", text.substr(0, 32), fmt::join(kOps, " "));
  return static_cast<KvOp>(found - std::begin(kOps));
}

void Validate(const KvRequest& request) {
  Validate(request.shape);
  CheckRange("group", request.group, 1, 128);
  CheckRange("q_tokens", request.q_tokens, 1, request.op == KvOp::kAttention ? 8 : 1 << 16);
  if (request.op != KvOp::kAttention && request.q_tokens > request.shape.chunk)
    Fail("request: q_tokens: found {}, allowed: 1 to the cache's chunk of {}", request.q_tokens,
         request.shape.chunk);
  if (request.shape.window > 0 && request.q_tokens > request.shape.chunk)
    Fail("request: q_tokens: found {}, allowed with a window: 1 to the cache's chunk of {}", request.q_tokens,
         request.shape.chunk);
  CheckRange("rows", request.rows, 1, 65535);
  if (request.activation != DType::kF16 && request.activation != DType::kBF16)
    Fail("request: activation: found {}, allowed: fp16 bf16", ToString(request.activation));
  if (request.gpu.arch == 0) Fail("request: gpu: found none, allowed: a name of the table or a JSON object");
  LimitsOf(request.gpu.arch);
  const KvPins& pins = request.pins;
  CheckRange("pin warps", pins.warps, 0, 16);
  CheckRange("pin slots", pins.slots, 0, 8);
  CheckRange("pin tile", pins.tile, 0, 128);
  CheckRange("pin split_tokens", pins.split_tokens, 0, 1 << 20);
  if (pins.split_tokens % request.shape.page_tokens != 0)
    Fail("request: pin split_tokens: found {}, allowed: multiples of a page of {}", pins.split_tokens,
         request.shape.page_tokens);
  CheckRange("pin key_compute", pins.key_compute, -1, 1);
  CheckRange("pin value_compute", pins.value_compute, -1, 1);
}

}  // namespace vqllm
