#include "codegen/request.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <nlohmann/json.hpp>

#include "vq/base/error.h"
#include "vq/base/json_reader.h"

namespace vqllm {
namespace {

constexpr std::string_view kOps[] = {"dequant", "gemv", "gemm"};
constexpr std::string_view kLevelNames[] = {"gc", "sc", "o1", "o2", "o3", "o4", "best"};
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
const char* ToString(Level level) { return kLevelNames[static_cast<size_t>(level)].data(); }
const char* ToString(Compute compute) { return kComputes[static_cast<size_t>(compute)].data(); }
const char* ToString(Fusion fusion) { return kFusions[static_cast<size_t>(fusion)].data(); }
OpKind ParseOp(std::string_view text) { return static_cast<OpKind>(Find(kOps, text, "op")); }
Level ParseLevel(std::string_view text) { return static_cast<Level>(Find(kLevelNames, text, "level")); }
Compute ParseCompute(std::string_view text) { return static_cast<Compute>(Find(kComputes, text, "compute")); }
Fusion ParseFusion(std::string_view text) { return static_cast<Fusion>(Find(kFusions, text, "fusion")); }

PlanPins ParsePins(std::string_view text, const std::string& where) {
  const nlohmann::json json = ParseJson(text, where);
  const JsonReader reader(json, where);
  PlanPins pins;
  std::vector<std::string> names = {"compute", "fusion"};
  for (const PinOption& pin : kPinOptions) {
    std::string name = pin.name;
    std::replace(name.begin(), name.end(), '-', '_');
    if (reader.Has(name)) pins.*pin.value = static_cast<int>(reader.Int(name, 0, pin.high));
    names.push_back(std::move(name));
  }
  if (reader.Has("compute")) pins.compute = ParseCompute(reader.String("compute"));
  if (reader.Has("fusion")) pins.fusion = ParseFusion(reader.String("fusion"));
  for (const auto& [name, value] : json.items()) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      reader.Refuse(name, fmt::format("no such field, but {}", fmt::join(names, " ")));
  }
  return pins;
}

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
  if (request.pins.replicas > 0 && !std::has_single_bit(static_cast<unsigned>(request.pins.replicas)))
    Fail("request: pin replicas: found {}, allowed: 1 2 4 8 16 32", request.pins.replicas);
}

}  // namespace vqllm
