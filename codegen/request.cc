#include "codegen/request.h"

#include <iterator>

#include "vq/base/error.h"

namespace vqllm {
namespace {

constexpr std::string_view kOps[] = {"dequant", "gemv", "gemm"};
constexpr std::string_view kLevels[] = {"gc", "sc", "o1", "o2", "o3", "o4", "best"};
constexpr std::string_view kComputes[] = {"store", "dequant_fma", "dequant_mma", "lookup_table"};
constexpr std::string_view kFusions[] = {"none", "shared", "register_shuffle", "zero_shuffle"};

// 2^18 outputs and inputs: three times the largest layer in use; keeps every index of a row below 2^31.
constexpr int64_t kMaxSide = 1 << 18;
constexpr int64_t kMaxTokens = 1 << 16;
constexpr int64_t kMaxGemvTokens = 16;

template <size_t N>
size_t Find(const std::string_view (&words)[N], std::string_view text, std::string_view field) {
  for (size_t i = 0; i < N; ++i) {
    if (words[i] == text) return i;
  }
  Fail("{}: found \"{}\", allowed: {}", field, text.substr(0, 32), fmt::join(words, " "));
}

void CheckRange(std::string_view field, int64_t found, int64_t high) {
  if (found < 1 || found > high) Fail("request: {}: found {}, allowed: 1 to {}", field, found, high);
}

}  // namespace

const char* ToString(OpKind op) { return kOps[static_cast<size_t>(op)].data(); }
const char* ToString(Level level) { return kLevels[static_cast<size_t>(level)].data(); }
const char* ToString(Compute compute) { return kComputes[static_cast<size_t>(compute)].data(); }
const char* ToString(Fusion fusion) { return kFusions[static_cast<size_t>(fusion)].data(); }
OpKind ParseOp(std::string_view text) { return static_cast<OpKind>(Find(kOps, text, "op")); }
Level ParseLevel(std::string_view text) { return static_cast<Level>(Find(kLevels, text, "level")); }
Compute ParseCompute(std::string_view text) { return static_cast<Compute>(Find(kComputes, text, "compute")); }
Fusion ParseFusion(std::string_view text) { return static_cast<Fusion>(Find(kFusions, text, "fusion")); }

void Validate(const Request& request) {
  Validate(request.format);
  CheckRange("n", request.n, kMaxSide);
  CheckRange("k", request.k, kMaxSide);
  if (request.op != OpKind::kDequant)
    CheckRange("m", request.m, request.op == OpKind::kGemv ? kMaxGemvTokens : kMaxTokens);
  if (request.activation != DType::kF16 && request.activation != DType::kBF16)
    Fail("request: activation: found {}, allowed: fp16 bf16", ToString(request.activation));
  if (request.bias && request.op == OpKind::kDequant)
    Fail("request: bias: found true, allowed: false for dequant");
  if (request.gpu.arch == 0) Fail("request: gpu: found none, allowed: a name of the table or a JSON object");
  LimitsOf(request.gpu.arch);
  for (const PinOption& pin : kPinOptions) {
    const int found = request.pins.*pin.value;
    if (found < 0 || found > pin.high)
      Fail("request: pin {}: found {}, allowed: 0 (free) to {}", pin.name, found, pin.high);
  }
}

}  // namespace vqllm
