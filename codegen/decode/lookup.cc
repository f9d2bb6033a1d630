// VQ<v,b,R>: a code of each stage picks an entry; the entries add up. Entries live in the tiers of the plan.
#include "codegen/decode/decoder.h"
#include "codegen/text.h"
#include "vq/base/check.h"
#include "vq/tensor.h"

namespace vqllm::internal {
namespace {

constexpr const char* kComponents[] = {"x", "y", "z", "w"};

/// How an entry is moved: `vectors` loads of `type`, `words` words each.
struct EntryType {
  const char* type;
  int words;
  int vectors;
};
EntryType TypeOf(int subvector) {
  const int words = EntryWords(subvector);
  if (words == 1) return {"unsigned", 1, 1};
  if (words == 2) return {"uint2", 2, 1};
  return {"uint4", 4, words / 4};
}

std::string Component(const EntryType& entry, const std::string& name, int word) {
  return entry.words == 1 ? name : fmt::format("{}.{}", name, kComponents[word]);
}

/// True where some entries of the stage are read from global memory.
bool ReadsGlobal(const StageTier& tier) { return std::max(tier.held, tier.shared) < tier.entries; }

std::string StageMembers(const EntryType& entry, const StageTier& tier, int stage, int pairs) {
  std::string text;
  if (tier.held > 0)
    text += fmt::format("unsigned held{}[{}];  // this lane's entry of the {} hottest\n", stage, pairs,
                        tier.held);
  if (tier.shared > 0) text += fmt::format("const {}* shared{};\n", entry.type, stage);
  if (ReadsGlobal(tier)) text += fmt::format("const {}* global{};\n", entry.type, stage);
  return text;
}

/// Statements that bring the entries of a stage into its tiers. `offset`: vectors of shared memory before it.
std::string StageLoad(const Plan& plan, const EntryType& entry, int stage, int64_t global_at,
                      int64_t shared_at) {
  const StageTier& tier = plan.stages[static_cast<size_t>(stage)];
  const bool many = plan.format.scope.kind != ScopeKind::kTensor && plan.segmented;
  const int stage_vectors = tier.entries * entry.vectors;
  std::string text =
      FillText("const $type$* from$s$ = codebooks$at$$index$;",
               {{"type", entry.type},
                {"s", stage},
                {"at", global_at == 0 ? std::string() : fmt::format(" + {}", global_at)},
                {"index", many ? fmt::format(" + static_cast<long long>(index) * {}", stage_vectors)
                               : std::string()}});
  if (ReadsGlobal(tier)) text += fmt::format("book.global{0} = from{0};\n", stage);
  if (tier.held > 0) {
    const int pairs = (plan.format.subvector + 1) / 2;
    for (int vector = 0; vector < entry.vectors; ++vector) {
      const int used = std::min(entry.words, pairs - vector * entry.words);
      if (used <= 0) continue;
      const std::string lane =
          tier.held == 32 ? "threadIdx.x % 32" : fmt::format("min(threadIdx.x % 32, {}u)", tier.held - 1);
      text += fmt::format("const {0} own{1}_{2} = __ldg(from{1} + {4} * {3} + {2});\n", entry.type, stage,
                          vector, entry.vectors, lane);
      for (int w = 0; w < used; ++w) {
        text += fmt::format("book.held{}[{}] = {};\n", stage, vector * entry.words + w,
                            Component(entry, fmt::format("own{}_{}", stage, vector), w));
      }
    }
  }
  if (tier.shared > 0) {
    text += FillText(
        R"(
      for (int i = threadIdx.x; i < $count$; i += kThreads) {
        shared[$at$i] = __ldg(from$s$ + $source$);
      }
      book.shared$s$ = shared$behind$$own$;
    )",
        {{"s", stage},
         {"at", shared_at == 0 ? std::string() : fmt::format("{} + ", shared_at)},
         {"behind", shared_at == 0 ? std::string() : fmt::format(" + {}", shared_at)},
         {"count", tier.shared * entry.vectors * tier.replicas},
         {"source", entry.vectors == 1
                        ? (tier.replicas == 1 ? std::string("i") : fmt::format("i / {}", tier.replicas))
                        : fmt::format("i / {0} % {1} * {2} + i / {3}", tier.replicas, tier.shared,
                                      entry.vectors, tier.replicas * tier.shared)},
         {"own", tier.replicas == 1 ? std::string() : fmt::format(" + threadIdx.x % {}", tier.replicas)}});
  }
  return text;
}

/// Expression for vector `vector` of the entry of `code`.
std::string SharedRead(const StageTier& tier, int stage, int vector) {
  const std::string scaled =
      tier.replicas == 1 ? fmt::format("code{}", stage) : fmt::format("code{} * {}", stage, tier.replicas);
  const int plane = vector * tier.shared * tier.replicas;
  return plane == 0 ? fmt::format("book.shared{}[{}]", stage, scaled)
                    : fmt::format("book.shared{}[{} + {}]", stage, plane, scaled);
}
std::string GlobalRead(const Plan& plan, const EntryType& entry, int stage, int vector) {
  const StageTier& tier = plan.stages[static_cast<size_t>(stage)];
  std::string at = entry.vectors == 1 ? fmt::format("code{}", stage)
                                      : fmt::format("code{} * {} + {}", stage, entry.vectors, vector);
  if (IndexesCodebooks(plan)) at = fmt::format("index * {} + {}", tier.entries * entry.vectors, at);
  return fmt::format("__ldg(book.global{} + {})", stage, at);
}

std::string StageDecode(const Plan& plan, const EntryType& entry, int stage, int bit) {
  const StageTier& tier = plan.stages[static_cast<size_t>(stage)];
  const int pairs = (plan.format.subvector + 1) / 2;
  std::string text = FillText(
      "const unsigned code$s$ = Bits(words, unit * kUnitBits$at$, $bits$);",
      {{"s", stage}, {"at", bit == 0 ? std::string() : fmt::format(" + {}", bit)}, {"bits", tier.code_bits}});
  for (int vector = 0; vector < entry.vectors; ++vector) {
    const int used = std::min(entry.words, pairs - vector * entry.words);
    if (used <= 0) continue;
    const std::string name =
        entry.vectors == 1 ? fmt::format("entry{}", stage) : fmt::format("entry{}_{}", stage, vector);
    const bool global = ReadsGlobal(tier);
    const std::string global_read = global ? GlobalRead(plan, entry, stage, vector) : "";
    const std::string memory = tier.shared == 0 ? global_read
                               : global         ? fmt::format("code{} < {} ? {} : {}", stage, tier.shared,
                                                              SharedRead(tier, stage, vector), global_read)
                                                : SharedRead(tier, stage, vector);
    if (tier.held == 0) {
      text += fmt::format("const {} {} = {};\n", entry.type, name, memory);
    } else {
      // Every lane takes part in the shuffles, those with cold codes too.
      text += fmt::format("{} {};\n", entry.type, name);
      for (int w = 0; w < used; ++w) {
        text += fmt::format("{} = __shfl_sync(0xffffffffu, book.held{}[{}], code{});\n",
                            Component(entry, name, w), stage, vector * entry.words + w, stage);
      }
      if (tier.held < tier.entries)
        text += fmt::format("if (code{} >= {}) {} = {};\n", stage, tier.held, name, memory);
    }
    for (int w = 0; w < used; ++w) {
      const int pair = vector * entry.words + w;
      const std::string value = Component(entry, name, w);
      text += stage == 0 ? fmt::format("pairs[{}] = {};\n", pair, value)
                         : fmt::format("pairs[{0}] = AddPairs(pairs[{0}], {1});\n", pair, value);
    }
  }
  return text;
}

}  // namespace

DecoderText EmitLookup(const Plan& plan) {
  const Format& f = plan.format;
  const EntryType entry = TypeOf(f.subvector);
  const UnitShape unit = UnitOf(f);
  DecoderText out;
  std::string members;
  std::string load;
  std::string decode;
  bool shared = false;
  int bit = 0;
  int64_t global_at = 0;
  int64_t shared_at = 0;
  const int64_t books = CodebookCount(f, plan.n, plan.k);
  for (int stage = 0; stage < f.stages(); ++stage) {
    const StageTier& tier = plan.stages[static_cast<size_t>(stage)];
    members += StageMembers(entry, tier, stage, unit.Pairs());
    load += StageLoad(plan, entry, stage, global_at, shared_at);
    decode += StageDecode(plan, entry, stage, bit);
    bit += tier.code_bits;
    global_at += books * tier.entries * entry.vectors;
    shared_at += static_cast<int64_t>(tier.shared) * tier.replicas * entry.vectors;
    shared |= tier.shared > 0;
  }
  out.blocks = {CodesCrossWords(plan) ? "bits_crossing" : "bits"};
  if (f.stages() > 1) out.blocks.insert({"pairs", "pairs_add"});
  const bool many = f.scope.kind != ScopeKind::kTensor && plan.segmented;
  out.constants = FillText("constexpr int kUnitBits = $bits$;  // the codes of all stages of one subvector",
                           {{"bits", unit.bits}});
  out.functions = FillText(
      R"(
    // Where the entries of each stage are read from.
    struct Codebook {
      $members$
    };

    // $comment$
    $load_head$
      Codebook book;
      $load$
      return book;
    }

    // One unit: $v$ weights$axis$, the sum of an entry of each stage.
    $decode_head$
      $decode$
    }
  )",
      {{"members", members},
       {"comment", shared ? "Copies entries into shared memory; a barrier must follow."
                          : "No entry is copied: the caches serve them."},
       {"load_head",
        FunctionHead("__device__ __forceinline__ Codebook LoadCodebook",
                     {fmt::format("const {}* __restrict__ codebooks", entry.type),
                      shared ? fmt::format("{}* shared", entry.type) : "", many ? "int index" : ""})},
       {"load", load},
       {"v", f.subvector},
       {"axis", f.axis == Axis::kOut ? " of one column" : " of one row"},
       {"decode_head", FunctionHead("__device__ __forceinline__ void DecodeUnit",
                                    {"const unsigned* words", "int unit", "const Codebook& book",
                                     IndexesCodebooks(plan) ? "int index" : "",
                                     fmt::format("unsigned (&pairs)[{}]", unit.Pairs())})},
       {"decode", decode}});
  return out;
}

}  // namespace vqllm::internal
