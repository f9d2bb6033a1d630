#include "codegen/ablation.h"

#include <array>

#include "codegen/planner.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

struct Shape {
  int64_t n;
  int64_t k;
};
struct ModelShapes {
  const char* name;
  std::array<Shape, 3> layers;  // attention projection, MLP up, MLP down
};
constexpr ModelShapes kModels[] = {{"Llama-7B", {{{4096, 4096}, {11008, 4096}, {4096, 11008}}}},
                                   {"Llama-65B", {{{8192, 8192}, {22016, 8192}, {8192, 22016}}}}};
constexpr const char* kFormats[] = {"quip-4", "aqlm-3", "gptvq-2"};
constexpr const char* kGpus[] = {"rtx4090", "a100", "h100"};
struct OpCase {
  const char* title;
  OpKind op;
  int64_t m;
};
constexpr OpCase kOps[] = {
    {"GeMV m=1", OpKind::kGemv, 1}, {"GeMV m=16", OpKind::kGemv, 16}, {"GeMM m=1024", OpKind::kGemm, 1024}};

/// Modelled microseconds of the three layers together, and what binds the largest.
struct Cell {
  double us = 0;
  std::string bound;
};
Cell Modelled(const OpCase& op, const char* format, const ModelShapes& model, const char* gpu, Level level) {
  Cell cell;
  for (const Shape& shape : model.layers) {
    Request request;
    request.op = op.op;
    request.format = ParseFormat(format);
    request.m = op.m;
    request.n = shape.n;
    request.k = shape.k;
    request.gpu = ParseGpu(gpu);
    request.level = level;
    const PlanResult planned = MakePlan(request, 0);
    cell.us += planned.best.time.lower_us;
    cell.bound = planned.best.time.bound;
  }
  return cell;
}

}  // namespace

std::string AblationTable() {
  std::string text =
      "All figures are **modelled** microseconds (lower bound of the latency model) of the attention "
      "projection and\n"
      "both MLP matrices together; the word names the bounding term of the last matrix. None is measured.\n";
  double reduction = 0;
  int cells = 0;
  std::string ratios;
  for (const ModelShapes& model : kModels) {
    for (const char* gpu : kGpus) {
      text += fmt::format(
          "\n### {} on {}\n\n| op | format | gc | sc | o1 | o2 | o3 | o4 | best | best against gc | "
          "int4-g128 |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|\n",
          model.name, ParseGpu(gpu).title);
      for (const OpCase& op : kOps) {
        const Cell opponent = Modelled(op, "int4-g128", model, gpu, Level::kBest);
        for (const char* format : kFormats) {
          text += fmt::format("| {} | {} |", op.title, format);
          double gc = 0;
          double best = 0;
          for (const Level level : kLevels) {
            const Cell cell = Modelled(op, format, model, gpu, level);
            if (level == Level::kGc) gc = cell.us;
            best = cell.us;
            text += fmt::format(" {:.1f} {} |", cell.us, cell.bound);
          }
          text +=
              fmt::format(" {:+.1f} % | {:.1f} {} |\n", 100 * (best / gc - 1), opponent.us, opponent.bound);
          reduction += 1 - best / gc;
          ++cells;
          if (std::string_view(format) == "quip-4")
            ratios += fmt::format("| {} | {} | {} | {:.2f} |\n", model.name, ParseGpu(gpu).title, op.title,
                                  best / opponent.us);
        }
      }
    }
  }
  text += fmt::format(
      "\nMean reduction of `best` against `gc` over these {} cells: **{:.1f} %**, modelled.\n\n"
      "quip-4 against int4-g128 (below 1: VQ is faster), modelled:\n\n"
      "| model | GPU | op | ratio |\n|---|---|---|---|\n{}",
      cells, 100 * reduction / cells, ratios);
  return text;
}

}  // namespace vqllm
