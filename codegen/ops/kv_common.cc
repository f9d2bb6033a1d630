// Parts of emitted files that the ops on a KV cache share.
#include <cmath>

#include "codegen/decode/kv_reader.h"
#include "codegen/ops/kv.h"
#include "codegen/text.h"
#include "vq/base/check.h"

namespace vqllm::internal {

KvSidePlan ExactSide(const KvPlan& plan) {
  Format fp16;
  fp16.name = "fp16";
  KvSidePlan side;
  side.layout = MakeKvSideLayout(fp16, plan.shape.head_dim);
  return side;
}

std::string KvParameters(const KvPlan& plan, size_t launch) {
  const std::string element = ElementType(plan.activation);
  const bool append = plan.op == KvOp::kAppend;
  std::string text;
  for (const std::string& name : plan.launches[launch].parameters) {
    std::string type;
    if (name == "q" || name == "k" || name == "v") type = "const " + element;
    if (name == "out") type = element;
    if (name == "rows") type = "const int4";
    if (name == "pages") type = "const int";
    if (name == "keys" || name == "values" || name == "exact") type = append ? "unsigned" : "const unsigned";
    if (name == "key_books") type = "const " + KvEntryType(plan.key.layout);
    if (name == "value_books") type = "const " + KvEntryType(plan.value.layout);
    if (name == "rope") type = "const float2";
    if (name == "partial" || name == "partial_lse") type = launch > 0 ? "const float" : "float";
    VQLLM_CHECK(!type.empty(), "{}", name);
    text += fmt::format("{}{}* __restrict__ {}", text.empty() ? "" : ", ", type, name);
  }
  return text;
}

std::string KvConstants(const KvPlan& plan) {
  const KvShape& shape = plan.shape;
  std::string text = FillText(R"(
    constexpr int kHeadDim = $dim$;
    constexpr int kKvHeads = $kv_heads$;
    constexpr int kPageTokens = $page$;
    constexpr int kPages = $pages$;  // of a row in the page table: $context$ tokens
  )",
                              {{"dim", shape.head_dim},
                               {"kv_heads", shape.kv_heads},
                               {"page", shape.page_tokens},
                               {"pages", shape.Pages()},
                               {"context", shape.context}});
  if (plan.KeepsExact()) {
    text += FillText(R"(
      constexpr int kSinks = $sinks$;    // first tokens, read as exact copies
      constexpr int kExactTokens = $exact$;  // copies of a sequence and head
    )",
                     {{"sinks", shape.sinks}, {"exact", shape.ExactTokens()}});
  }
  if (shape.Ring() > 0) {
    text += FillText(R"(
      constexpr int kWindow = $window$;  // the query at t reads positions > t - kWindow as exact copies
      constexpr int kRing = $ring$;    // exact copies of recent tokens, at position % kRing
    )",
                     {{"window", shape.window}, {"ring", shape.Ring()}});
  }
  if (shape.sliding_window > 0)
    text += fmt::format("constexpr int kSliding = {};  // the query at t sees positions > t - kSliding\n",
                        shape.sliding_window);
  if (shape.rope_dim > 0)
    text += fmt::format("constexpr int kRopeHalf = {};  // channels j and j + kRopeHalf turn together\n",
                        shape.rope_dim / 2);
  return text;
}

std::string KvRotation(const KvPlan& plan) {
  const std::string element = ElementType(plan.activation);
  std::string text =
      FillText(R"(
    __device__ __forceinline__ float ToFloat($element$ value) { return $convert$(value); }
  )",
               {{"element", element},
                {"convert", plan.activation == DType::kBF16 ? "__bfloat162float" : "__half2float"}});
  if (plan.shape.rope_dim == 0) return text;
  text += "\n";
  text += FillText(
      R"(
    // A channel of a head, rotated to a position.
    __device__ __forceinline__ float Rotated(const $element$* __restrict__ head, int channel,
                                             const float2* __restrict__ rope, int position) {
      const float value = ToFloat(head[channel]);
      $rest$
      const bool first = channel < kRopeHalf;
      const float other = ToFloat(head[first ? channel + kRopeHalf : channel - kRopeHalf]);
      const float2 turn = __ldg(rope + static_cast<long long>(position) * kRopeHalf + (first ? channel : channel - kRopeHalf));
      return fmaf(first ? -other : other, turn.y, value * turn.x);
    }
  )",
      {{"element", element},
       {"rest",
        plan.shape.rope_dim < plan.shape.head_dim ? "if (channel >= 2 * kRopeHalf) return value;" : ""}});
  return text;
}

KvBooksText KvBooks(const KvPlan& plan) {
  KvBooksText text;
  const auto add = [&](const KvSidePlan& side, const char* name, const char* reader, int at) {
    if (KvStagesEntries(side)) {
      const std::string type = KvEntryType(side.layout);
      text.fill += fmt::format("{0}* {1}_entries = reinterpret_cast<{0}*>(shared + {2});\n", type, name, at);
      text.fill += fmt::format("Fill{}Entries({}_books, head, {}_entries);\n", reader, name, name);
      text.arguments += fmt::format(", {}_entries", name);
    }
    if (KvReadsBooks(side)) text.arguments += fmt::format(", {}_books", name);
  };
  if (plan.key.Codes()) {
    text.fill +=
        "float* key_table = reinterpret_cast<float*>(shared);\nFillKeyTable(key_books, head, queries, "
        "key_table);\n";
    text.arguments += ", key_table";
  } else {
    add(plan.key, "key", "Key", 0);
  }
  add(plan.value, "value", "Value", plan.key_bytes);
  if (plan.value.Codes())
    text.arguments += fmt::format(", reinterpret_cast<float*>(shared + {})", plan.key_bytes);
  return text;
}

std::string KvRotationArguments(const KvPlan& plan, const std::string& position) {
  return plan.shape.rope_dim > 0 ? fmt::format(", rope, {}", position) : std::string();
}

std::string KvExactPosition(const KvPlan& plan) {
  if (!plan.ReadsRecent()) return "const int position = t;\n";
  return plan.shape.sinks > 0 ? "const int position = t < sinks ? t : recent + t - sinks;\n"
                              : "const int position = recent + t;\n";
}

std::string KvExactToken(const KvPlan& plan) {
  const bool ring = plan.ReadsRecent();
  const bool sinks = plan.shape.sinks > 0;
  std::string text = KvExactPosition(plan);
  text += ring && sinks ? "const int place = position < kSinks ? position : kSinks + position % kRing;\n"
          : ring        ? "const int place = position % kRing;\n"
                        : "const int place = position;\n";
  return text +
         "const long long token = (static_cast<long long>(row.w) * kKvHeads + head) * kExactTokens + "
         "place;\n";
}

std::string KvSpans(const KvPlan& plan) {
  const KvShape& shape = plan.shape;
  std::string oldest = shape.sinks > 0 ? "kSinks" : "0";
  if (shape.sliding_window > 0) oldest = fmt::format("max({}, row.z - row.y - kSliding + 1)", oldest);
  return FillText(R"(
    // Stored positions that some query of a row reads in one split; empty where end <= begin. Splits are counted
    // from the page of the oldest one.
    struct Span {
      int begin;
      int end;
    };
    __device__ __forceinline__ Span StoredSpan(int4 row, int split) {
      const int oldest = $oldest$;
      const int start = oldest / kPageTokens * kPageTokens + split * kSplitTokens;
      return {max(oldest, start), min($newest$, start + kSplitTokens)};
    }
  )",
                  {{"oldest", oldest}, {"newest", shape.window > 0 ? "row.z - kWindow" : "row.z"}});
}

}  // namespace vqllm::internal
