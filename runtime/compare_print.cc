#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "runtime/compare.h"

namespace vqllm {
namespace {

enum class Better { kNeither, kLower, kHigher };

/// One column of the table.
struct Column {
  const char* title;
  Better better;
  std::function<double(const CompareRow&)> value;
  const char* format;     // of fmt
  bool optional = false;  // left out where all rows have 0: the device does not measure, or not count it
};

constexpr double kMebi = 1024 * 1024;

const std::vector<Column>& Columns() {
  static const std::vector<Column> columns = {
      {"w bits", Better::kNeither, [](const CompareRow& r) { return r.weight_bits; }, "{:.2f}"},
      {"kv bits", Better::kNeither, [](const CompareRow& r) { return r.kv_bits; }, "{:.2f}"},
      {"MiB", Better::kLower, [](const CompareRow& r) { return static_cast<double>(r.model_bytes) / kMebi; },
       "{:.2f}"},
      {"kv B/tok", Better::kLower,
       [](const CompareRow& r) { return static_cast<double>(r.kv_bytes_per_token); }, "{:.0f}"},
      {"ppl", Better::kLower, [](const CompareRow& r) { return r.ppl; }, "{:.3f}"},
      {"+-", Better::kNeither, [](const CompareRow& r) { return r.ppl_err; }, "{:.3f}"},
      {"KL mean", Better::kLower, [](const CompareRow& r) { return r.kl_mean; }, "{:.5f}"},
      {"KL p99", Better::kLower, [](const CompareRow& r) { return r.kl_p99; }, "{:.4f}"},
      {"top1 %", Better::kHigher, [](const CompareRow& r) { return 100 * r.top1; }, "{:.2f}"},
      {"prefill t/s", Better::kHigher, [](const CompareRow& r) { return r.prefill_tps; }, "{:.0f}", true},
      {"decode t/s", Better::kHigher, [](const CompareRow& r) { return r.decode_tps; }, "{:.1f}", true},
      {"DRAM KiB/tok", Better::kLower, [](const CompareRow& r) { return r.dram_bytes / 1024; }, "{:.1f}",
       true},
      {"shared/tok", Better::kLower, [](const CompareRow& r) { return r.shared_wavefronts; }, "{:.0f}", true},
      {"modelled us/tok", Better::kLower, [](const CompareRow& r) { return r.modelled_lower_us; }, "{:.1f}",
       true},
      {"to", Better::kLower, [](const CompareRow& r) { return r.modelled_upper_us; }, "{:.0f}", true},
      {"RSS MiB", Better::kLower, [](const CompareRow& r) { return static_cast<double>(r.peak_rss) / kMebi; },
       "{:.0f}"},
  };
  return columns;
}

/// Cells of a column as text, the best of them marked. Values that print alike are equally good.
std::vector<std::string> Cells(const Column& column, const std::vector<CompareRow>& rows) {
  std::vector<std::string> cells;
  const CompareRow* best = nullptr;
  for (const CompareRow& row : rows) {
    cells.push_back(fmt::format(fmt::runtime(column.format), column.value(row)));
    const auto ahead = [&] {
      return column.better == Better::kLower ? column.value(row) < column.value(*best)
                                             : column.value(row) > column.value(*best);
    };
    if (best == nullptr || ahead()) best = &row;
  }
  if (best == nullptr) return cells;
  const std::string mark = fmt::format(fmt::runtime(column.format), column.value(*best));
  for (std::string& cell : cells) cell += column.better != Better::kNeither && cell == mark ? "*" : " ";
  return cells;
}

}  // namespace

std::string CompareTable(const std::vector<CompareRow>& rows) {
  size_t weights = 7;
  size_t kv = 2;
  for (const CompareRow& row : rows) {
    weights = std::max(weights, row.weights.size());
    kv = std::max(kv, row.kv.size());
  }
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{:<{}}  {:<{}}", "weights", weights, "kv", kv));
  for (const CompareRow& row : rows)
    lines.push_back(fmt::format("{:<{}}  {:<{}}", row.weights, weights, row.kv, kv));
  for (const Column& column : Columns()) {
    const auto zero = [&](const CompareRow& row) { return column.value(row) == 0; };
    if (column.optional && std::ranges::all_of(rows, zero)) continue;
    const std::vector<std::string> cells = Cells(column, rows);
    size_t width = std::string(column.title).size() + 1;
    for (const std::string& cell : cells) width = std::max(width, cell.size());
    lines[0] += fmt::format("  {:>{}}", std::string(column.title) + " ", width);
    for (size_t i = 0; i < cells.size(); ++i) lines[i + 1] += fmt::format("  {:>{}}", cells[i], width);
  }
  for (std::string& line : lines) line.erase(line.find_last_not_of(' ') + 1);
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

std::string CompareKernels(const std::vector<CompareRow>& rows) {
  std::string text;
  for (const CompareRow& row : rows) {
    if (row.ops.empty()) continue;
    text += fmt::format("\n{} {}: kernels of a decode step\n", row.weights, row.kv);
    for (const KernelUse& use : row.ops) {
      text += fmt::format("  {:<32} {:<28} {:>4} launches", use.op, use.kernels, use.launches);
      if (row.dram_bytes > 0) {
        text += fmt::format("  {:>9.1f} KiB  {:>8.0f} passes  {:>7.1f} to {:.1f} us", use.dram_bytes / 1024,
                            use.shared_wavefronts, use.modelled_lower_us, use.modelled_upper_us);
      }
      text += "\n";
    }
  }
  return text;
}

std::string CompareJson(const std::vector<CompareRow>& rows) {
  nlohmann::ordered_json out = {{"rows", nlohmann::ordered_json::array()}};
  for (const CompareRow& row : rows) {
    out["rows"].push_back({{"weights", row.weights},
                           {"kv", row.kv},
                           {"weight_bits", row.weight_bits},
                           {"kv_bits", row.kv_bits},
                           {"model_bytes", row.model_bytes},
                           {"kv_bytes_per_token", row.kv_bytes_per_token},
                           {"ppl", row.ppl},
                           {"ppl_err", row.ppl_err},
                           {"kl_mean", row.kl_mean},
                           {"kl_p99", row.kl_p99},
                           {"top1", row.top1},
                           {"prefill_tps", row.prefill_tps},
                           {"decode_tps", row.decode_tps},
                           {"peak_rss", row.peak_rss}});
    if (row.ops.empty()) continue;
    nlohmann::ordered_json& json = out["rows"].back();
    const auto add = [counted = row.dram_bytes > 0](nlohmann::ordered_json& to, const auto& sums) {
      if (!counted) return;
      to["dram_bytes"] = sums.dram_bytes;
      to["shared_wavefronts"] = sums.shared_wavefronts;
      to["modelled_lower_us"] = sums.modelled_lower_us;
      to["modelled_upper_us"] = sums.modelled_upper_us;
    };
    add(json, row);
    json["ops"] = nlohmann::ordered_json::array();
    for (const KernelUse& use : row.ops) {
      json["ops"].push_back({{"op", use.op}, {"kernels", use.kernels}, {"launches", use.launches}});
      add(json["ops"].back(), use);
    }
  }
  return out.dump(1) + "\n";
}

}  // namespace vqllm
