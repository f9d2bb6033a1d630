#include "codegen/kv/plan.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/base/math.h"

namespace vqllm {
namespace {

constexpr const char* kComputes[] = {"dequantise", "codes"};

int Align16(int bytes) { return (bytes + 15) / 16 * 16; }

/// Tokens of the stored context that the queries of one row may see, counted from the page that the oldest is
/// in.
int StoredTokens(const KvPlan& plan) {
  const KvShape& shape = plan.shape;
  if (shape.sliding_window == 0) return shape.context;
  return std::min(shape.context, shape.sliding_window + plan.q_tokens - 1 + shape.page_tokens - 1);
}

int Lanes(const KvPlan& plan) {
  int slices = std::max(plan.key.layout.slices, plan.value.layout.slices);
  if (plan.ReadsExact()) {
    Format fp16;
    fp16.name = "fp16";
    slices = std::max(slices, MakeKvSideLayout(fp16, plan.shape.head_dim).slices);
  }
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(slices)));
}

void AddBooks(const KvPlan& plan, std::vector<std::string>& parameters) {
  if (plan.key.layout.format.kind == FormatKind::kTable) parameters.emplace_back("key_books");
  if (plan.value.layout.format.kind == FormatKind::kTable) parameters.emplace_back("value_books");
}

/// Far more than any arch has stays far more.
int Bytes(int64_t bytes) { return static_cast<int>(std::min<int64_t>(bytes, 1 << 28)); }

/// What the sides of an attention kernel keep in shared memory.
void CompleteCodes(KvPlan& plan) {
  const KvSideLayout& key = plan.key.layout;
  plan.key_bytes = plan.key.EntryBytes();
  plan.value_bytes = plan.value.EntryBytes();
  for (const KvSidePlan* side : {&plan.key, &plan.value}) {
    if (side->Codes() && side->stages.empty())
      Fail("plan: compute codes: found format {}, allowed: formats with codebooks", side->layout.format.name);
  }
  if (plan.key.Codes()) {
    if (plan.shape.keys_before_rope && plan.shape.rope_dim > 0)
      Fail(
          "plan: key compute codes: found keys before rope, allowed: keys that a product with an entry "
          "stands for");
    if (key.units > plan.Threads())
      Fail("plan: key compute codes: found {} units of a head, allowed: {}, the threads", key.units,
           plan.Threads());
    plan.key_bytes = Align16(Bytes(int64_t{4} * plan.tile * plan.key.Entries() * key.units));
  }
  if (plan.value.Codes()) {
    plan.value_bytes =
        Bytes(int64_t{4} * plan.tile * plan.value.layout.slice_units * plan.value.Entries() * plan.Threads());
  }
}

void CompleteAttention(KvPlan& plan) {
  plan.queries = plan.q_tokens * plan.group;
  plan.tile = std::min(plan.tile, plan.queries);
  plan.query_tiles = CeilDiv(plan.queries, plan.tile);
  plan.lanes = Lanes(plan);
  const int stored = StoredTokens(plan);
  plan.split_tokens =
      std::min(plan.split_tokens, CeilDiv(stored, plan.shape.page_tokens) * plan.shape.page_tokens);
  plan.splits = CeilDiv(stored, plan.split_tokens);
  CompleteCodes(plan);
  plan.query_bytes = Align16(4 * plan.tile * plan.shape.head_dim);
  plan.page_bytes = Align16(4 * plan.split_tokens / plan.shape.page_tokens);
  plan.state_bytes = plan.warps * plan.tile * (plan.shape.head_dim + 2) * 4;
  if (plan.value.Codes())
    plan.state_bytes = Align16(plan.state_bytes) + 2 * 4 * plan.tile * plan.warps * plan.TokenLanes();
  plan.state_bytes = Align16(plan.state_bytes);
  plan.shared_bytes = std::max(plan.PageAt() + plan.page_bytes, plan.StateAt() + plan.state_bytes);

  KernelLaunch main;
  main.kernel = "attention";
  main.grid_x = plan.shape.kv_heads * plan.query_tiles;
  main.grid_y = plan.AllSplits();
  main.grid_z = plan.rows;
  main.threads = plan.Threads();
  main.shared_bytes = plan.shared_bytes;
  main.parameters = {"q", "rows", "pages", "keys", "values"};
  AddBooks(plan, main.parameters);
  if (plan.ReadsExact()) main.parameters.emplace_back("exact");
  if (plan.shape.rope_dim > 0) main.parameters.emplace_back("rope");
  if (!plan.Merges()) {
    main.parameters.emplace_back("out");
    plan.launches = {main};
    return;
  }
  main.parameters.insert(main.parameters.end(), {"partial", "partial_lse"});
  KernelLaunch merge;
  merge.kernel = "merge_splits";
  merge.grid_x = plan.Heads();
  merge.grid_y = plan.q_tokens;
  merge.grid_z = plan.rows;
  merge.threads = CeilDiv(plan.shape.head_dim, 32) * 32;
  merge.parameters = {"rows", "partial", "partial_lse", "out"};
  plan.launches = {main, merge};
}

void CompleteAppend(KvPlan& plan) {
  const int dim = plan.shape.head_dim;
  int codes = 0;  // words of staged codes and of the best entries that the parts of a block found
  for (const KvSidePlan* side : {&plan.key, &plan.value}) {
    const KvSideLayout& layout = side->layout;
    const bool table = layout.format.kind == FormatKind::kTable;
    const int parts = table ? std::max(1, plan.Threads() / layout.units) : 1;
    const int words = table ? layout.units * (layout.format.stages() + 2 * parts) : dim + 2 * layout.groups;
    codes = std::max(codes, words);
  }
  plan.state_bytes = Align16(plan.tile * 4 * (dim + codes));
  plan.shared_bytes = plan.state_bytes;
  KernelLaunch main;
  main.kernel = "kv_append";
  main.grid_x = 2 * plan.shape.kv_heads;
  main.grid_y = CeilDiv(plan.q_tokens, plan.tile);
  main.grid_z = plan.rows;
  main.threads = plan.Threads();
  main.shared_bytes = plan.shared_bytes;
  main.parameters = {"k", "v", "rows", "pages"};
  AddBooks(plan, main.parameters);
  if (plan.shape.rope_dim > 0) main.parameters.emplace_back("rope");
  main.parameters.insert(main.parameters.end(), {"keys", "values"});
  if (plan.KeepsExact()) main.parameters.emplace_back("exact");
  plan.launches = {main};
}

void CompletePrefill(KvPlan& plan) {
  plan.queries = plan.q_tokens * plan.group;
  plan.tile = 16 * plan.warps;
  plan.query_tiles = CeilDiv(plan.queries, plan.tile);
  plan.key_bytes = plan.key.EntryBytes();
  plan.value_bytes = plan.value.EntryBytes();
  // Queries, keys and values as 16 bits, rows 16 bytes longer than the padded head: ldmatrix then meets every
  // bank once.
  const int row_bytes = 2 * (CeilDiv(plan.shape.head_dim, 16) * 16 + 8);
  plan.state_bytes = (plan.tile + 2 * plan.key_tile) * row_bytes;
  plan.shared_bytes = plan.QueryAt() + plan.state_bytes;
  KernelLaunch main;
  main.kernel = "attention_prefill";
  main.grid_x = plan.shape.kv_heads;
  main.grid_y = plan.query_tiles;
  main.grid_z = plan.rows;
  main.threads = plan.Threads();
  main.shared_bytes = plan.shared_bytes;
  main.parameters = {"q", "rows", "pages", "keys", "values"};
  AddBooks(plan, main.parameters);
  if (plan.ReadsExact()) main.parameters.emplace_back("exact");
  if (plan.shape.rope_dim > 0) main.parameters.emplace_back("rope");
  main.parameters.emplace_back("out");
  plan.launches = {main};
}

}  // namespace

bool CanTurn(const KvSideLayout& layout) {
  const int bits = layout.SliceBits();
  return layout.format.kind == FormatKind::kTable && layout.slice_units > 1 &&
         layout.slices * layout.slice_units == layout.units && bits <= 32 && 32 % bits == 0;
}

int KvSidePlan::Entries() const {
  int entries = 0;
  for (const StageTier& tier : stages) entries += tier.entries;
  return entries;
}

int KvSidePlan::EntryBytes() const {
  int bytes = 0;
  for (const StageTier& tier : stages) bytes += tier.shared * layout.units * 4 * layout.entry_words;
  return Align16(bytes);
}

const char* ToString(KvCompute compute) { return kComputes[static_cast<size_t>(compute)]; }

void CompleteKvPlan(KvPlan& plan, const GpuSpec& gpu) {
  switch (plan.op) {
    case KvOp::kAttention:
      CompleteAttention(plan);
      break;
    case KvOp::kAppend:
      CompleteAppend(plan);
      break;
    case KvOp::kPrefill:
      CompletePrefill(plan);
      break;
  }
  const ArchLimits& limits = LimitsOf(gpu.arch);
  if (plan.shared_bytes > limits.shared_block) {
    Fail("plan: shared memory: found {} bytes a block, allowed on {}: {}", plan.shared_bytes, gpu.Arch(),
         limits.shared_block);
  }
  const Occupancy occupancy =
      ComputeOccupancy(limits, plan.Threads(), plan.register_budget, plan.shared_bytes);
  if (occupancy.blocks < 1) {
    Fail("plan: registers: found {} a thread for {} threads, allowed on {}: {}", plan.register_budget,
         plan.Threads(), gpu.Arch(), limits.registers_sm / plan.Threads());
  }
  // A launch bound that is too tight forces spills; one that is too loose costs nothing where the registers
  // are not needed.
  const int lenient =
      std::min({255, plan.register_budget + 64, limits.registers_sm / plan.Threads() / 8 * 8});
  plan.min_blocks = ComputeOccupancy(limits, plan.Threads(), lenient, plan.shared_bytes).blocks;
  VQLLM_CHECK(plan.min_blocks >= 1);
}

std::string ToJson(const KvPlan& plan) {
  using Json = nlohmann::ordered_json;
  const KvShape& shape = plan.shape;
  const auto side = [](const KvSidePlan& s) {
    Json json;
    json["format"] = Json::parse(ToJson(s.layout.format));
    json["compute"] = ToString(s.compute);
    json["turned"] = s.turned;
    json["layout"] = {{"unit_channels", s.layout.unit_channels}, {"units", s.layout.units},
                      {"slice_units", s.layout.slice_units},     {"slices", s.layout.slices},
                      {"code_words", s.layout.code_words},       {"number_words", s.layout.number_words}};
    json["stages"] = Json::array();
    for (const StageTier& tier : s.stages)
      json["stages"].push_back({{"entries", tier.entries}, {"shared", tier.shared}});
    return json;
  };
  Json json;
  json["op"] = ToString(plan.op);
  json["kv_heads"] = shape.kv_heads;
  json["group"] = plan.group;
  json["head_dim"] = shape.head_dim;
  json["q_tokens"] = plan.q_tokens;
  json["rows"] = plan.rows;
  json["context"] = shape.context;
  json["chunk"] = shape.chunk;
  json["page_tokens"] = shape.page_tokens;
  json["sinks"] = shape.sinks;
  json["window"] = shape.window;
  json["sliding_window"] = shape.sliding_window;
  json["exact_chunk"] = shape.exact_chunk;
  json["keys_before_rope"] = shape.keys_before_rope;
  json["rope_dim"] = shape.rope_dim;
  json["activation"] = ToString(plan.activation);
  json["gpu"] = plan.gpu;
  json["arch"] = plan.arch;
  json["level"] = ToString(plan.level);
  json["key"] = side(plan.key);
  json["value"] = side(plan.value);
  json["warps"] = plan.warps;
  json["slots"] = plan.slots;
  json["tile"] = plan.tile;
  json["split_tokens"] = plan.split_tokens;
  json["key_tile"] = plan.key_tile;
  json["splits"] = plan.splits;
  json["lanes"] = plan.lanes;
  json["shared_bytes"] = plan.shared_bytes;
  json["register_budget"] = plan.register_budget;
  json["min_blocks"] = plan.min_blocks;
  json["launches"] = Json::array();
  for (const KernelLaunch& launch : plan.launches) {
    json["launches"].push_back({{"kernel", launch.kernel},
                                {"grid", {launch.grid_x, launch.grid_y, launch.grid_z}},
                                {"threads", launch.threads},
                                {"shared_bytes", launch.shared_bytes},
                                {"parameters", launch.parameters}});
  }
  return json.dump();
}

}  // namespace vqllm
