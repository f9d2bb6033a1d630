#include "codegen/kv/ablation.h"

#include <map>

#include "codegen/kv/cost.h"
#include "codegen/kv/planner.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

struct Heads {
  const char* model;
  int kv_heads;
  int group;
};
constexpr Heads kModels[] = {{"Llama-7B", 32, 1}, {"Llama-3-8B", 8, 4}};
constexpr int kHeadDim = 128;
constexpr const char* kGpus[] = {"a100", "h100", "rtx4090"};
constexpr const char* kFormats[] = {"cq-4", "cq-2"};
constexpr int kLengths[] = {1024, 4096, 16384};
constexpr int kBatches[] = {1, 8};

struct Cell {
  double us = 0;
  std::string bound;
  std::string choice;  // what the best plan does with keys and values
};

/// Term lsu in its two halves: passes over the banks of shared memory, or lines and sectors of L1.
std::string BoundOf(const ModelledTime& time, const PlanCounters& counters) {
  if (time.bound != "lsu") return time.bound;
  return counters.SharedWavefronts() + counters.shuffles >= counters.traffic.global_lines ? "shared" : "l1";
}

std::string ChoiceOf(const KvPlan& plan) {
  const auto side = [](const KvSidePlan& s, const char* codes) {
    return s.stages.empty() ? "-" : s.Codes() ? codes : "decode";
  };
  return fmt::format("{}/{}, {} x {} tokens", side(plan.key, "table"), side(plan.value, "histogram"),
                     plan.splits, plan.split_tokens);
}

Cell Modelled(const Heads& heads, const char* gpu, const char* format, int length, int batch, Level level) {
  KvRequest request;
  request.shape.key = request.shape.value = ParseFormat(format);
  request.shape.kv_heads = heads.kv_heads;
  request.shape.head_dim = request.shape.rope_dim = kHeadDim;
  request.shape.context = length;
  request.group = heads.group;
  request.rows = batch;
  request.level = level;
  request.gpu = ParseGpu(gpu);
  const KvPlan plan = MakeKvPlan(request);
  const PlanCounters counters = PredictKvCounters(plan);
  const ModelledTime time = ModelKvTime(plan, counters, request.gpu);
  return {time.lower_us, BoundOf(time, counters), ChoiceOf(plan)};
}

/// The paper's two figures, beside ours.
struct Compared {
  std::string gpu;
  std::string model;
  double to_fp16;
  double to_int4;
};

}  // namespace

std::string AttentionTable() {
  std::string text =
      "All figures are **modelled** microseconds (lower bound of the latency model) of decode attention in "
      "one layer, "
      "one query\n"
      "token a sequence. The word names the bounding term: `shared` passes over the banks of shared memory "
      "and "
      "shuffles, `l1`\n"
      "lines of global loads, `issue` instruction slots, `latency` loads under way. None is measured.\n";
  std::vector<Compared> compared;
  std::map<std::string, int> bounds;
  for (const Heads& heads : kModels) {
    for (const char* gpu : kGpus) {
      const std::string title = ParseGpu(gpu).title;
      text += fmt::format(
          "\n### {} ({} KV heads, query heads a KV head: {}) on {}\n\n"
          "| tokens | batch | format | gc | sc | o1 | o2 | o3 | o4 | best | keys/values, splits of best | "
          "kv-fp16 | "
          "kv-int4 | to fp16 | to int4 |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
          heads.model, heads.kv_heads, heads.group, title);
      for (const int length : kLengths) {
        for (const int batch : kBatches) {
          const Cell fp16 = Modelled(heads, gpu, "kv-fp16", length, batch, Level::kBest);
          const Cell int4 = Modelled(heads, gpu, "kv-int4", length, batch, Level::kBest);
          for (const char* format : kFormats) {
            text += fmt::format("| {} | {} | {} |", length, batch, format);
            Cell cell;
            for (const Level level : kLevels) {
              cell = Modelled(heads, gpu, format, length, batch, level);
              text += fmt::format(" {:.1f} {} |", cell.us, cell.bound);
            }
            ++bounds[cell.bound];
            text += fmt::format(" {} | {:.1f} {} | {:.1f} {} | {:+.1f} % | {:.2f}x |\n", cell.choice, fp16.us,
                                fp16.bound, int4.us, int4.bound, 100 * (cell.us / fp16.us - 1),
                                cell.us / int4.us);
            if (length == 4096 && batch == 8 && std::string_view(format) == "cq-4")
              compared.push_back({title, heads.model, 100 * (cell.us / fp16.us - 1), cell.us / int4.us});
          }
        }
      }
    }
  }
  text +=
      "\ncq-4, 8 sequences of 4096 tokens (the paper: -66.4 % against fp16, 1.01x of int4 KV), modelled:\n\n"
      "| model | GPU | against fp16 | of int4 KV |\n|---|---|---|---|\n";
  for (const Compared& c : compared)
    text += fmt::format("| {} | {} | {:+.1f} % | {:.2f}x |\n", c.model, c.gpu, c.to_fp16, c.to_int4);
  std::vector<std::string> counts;
  for (const auto& [bound, count] : bounds) counts.push_back(fmt::format("{} {}", count, bound));
  text += fmt::format("\nWhat binds `best` of cq-4 and cq-2, cells of the tables above: {}.\n",
                      fmt::join(counts, ", "));
  return text;
}

}  // namespace vqllm
