#include "runtime/hot_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace vqllm {
namespace {

std::vector<std::string_view> SplitLines(std::string_view source) {
  std::vector<std::string_view> lines;
  while (!source.empty()) {
    const size_t end = std::min(source.find('\n'), source.size());
    lines.push_back(source.substr(0, end));
    source.remove_prefix(std::min(end + 1, source.size()));
  }
  return lines;
}

std::string_view WithoutIndentation(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  return text;
}

bool IsFile(std::string_view path, std::string_view file) {
  return path.ends_with(file) && (path.size() == file.size() || path[path.size() - file.size() - 1] == '/');
}

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::vector<LineCost> SumByLine(const std::vector<ptx::LineCount>& counts, std::string_view source,
                                std::string_view file) {
  const std::vector<std::string_view> text = SplitLines(source);
  std::map<int, LineCost> by_line;
  for (const ptx::LineCount& count : counts) {
    const bool known = count.source_line > 0 && static_cast<size_t>(count.source_line) <= text.size() &&
                       IsFile(count.source_file, file);
    LineCost& cost = by_line[known ? count.source_line : 0];
    cost.warp_instructions += count.warp_instructions;
    cost.thread_instructions += count.thread_instructions;
    cost.sectors += count.sectors;
    cost.wavefronts += count.wavefronts;
  }
  std::vector<LineCost> lines;
  for (auto& [line, cost] : by_line) {
    cost.line = line;
    cost.text = line == 0 ? "(no line)" : WithoutIndentation(text[static_cast<size_t>(line) - 1]);
    lines.push_back(std::move(cost));
  }
  return lines;
}

std::string HotLines(const std::vector<LineCost>& lines, size_t count) {
  LineCost all;
  for (const LineCost& line : lines) {
    all.warp_instructions += line.warp_instructions;
    all.sectors += line.sectors;
    all.wavefronts += line.wavefronts;
  }
  const auto hottest = [&](const LineCost* line) {
    return std::max({Share(line->warp_instructions, all.warp_instructions), Share(line->sectors, all.sectors),
                     Share(line->wavefronts, all.wavefronts)});
  };
  std::vector<const LineCost*> order;
  for (const LineCost& line : lines) order.push_back(&line);
  std::ranges::stable_sort(order, std::greater<>(), hottest);
  order.resize(std::min(order.size(), count));
  std::string out = fmt::format("{:>6} {:>14} {:>6} {:>12} {:>6} {:>12} {:>6}  {}\n", "line", "warp inst",
                                "%", "sectors", "%", "wavefronts", "%", "source");
  for (const LineCost* line : order) {
    const auto percent = [](uint64_t part, uint64_t whole) {
      return whole == 0 ? std::string("-") : fmt::format("{:.1f}", 100 * Share(part, whole));
    };
    out += fmt::format("{:>6} {:>14} {:>6} {:>12} {:>6} {:>12} {:>6}  {}\n", line->line,
                       line->warp_instructions, percent(line->warp_instructions, all.warp_instructions),
                       line->sectors, percent(line->sectors, all.sectors), line->wavefronts,
                       percent(line->wavefronts, all.wavefronts), line->text);
  }
  return out;
}

}  // namespace vqllm
