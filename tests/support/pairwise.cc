#include "tests/support/pairwise.h"

#include <cstddef>
#include <set>
#include <utility>

namespace vqllm::test {

std::vector<std::vector<int>> PairwiseRows(const std::vector<int>& sizes) {
  using Choice = std::pair<size_t, int>;  // factor, what is chosen
  std::set<std::pair<Choice, Choice>> open;
  for (size_t f = 0; f < sizes.size(); ++f) {
    for (size_t g = f + 1; g < sizes.size(); ++g) {
      for (int a = 0; a < sizes[f]; ++a) {
        for (int b = 0; b < sizes[g]; ++b) open.insert({{f, a}, {g, b}});
      }
    }
  }
  const auto gain = [&](const std::vector<int>& row, size_t factor, int choice) {
    int pairs = 0;
    for (size_t g = 0; g < row.size(); ++g) {
      if (g == factor || row[g] < 0) continue;
      const Choice mine{factor, choice};
      const Choice other{g, row[g]};
      pairs += static_cast<int>(open.count(g < factor ? std::pair(other, mine) : std::pair(mine, other)));
    }
    return pairs;
  };
  std::vector<std::vector<int>> rows;
  while (!open.empty()) {
    std::vector<int> row(sizes.size(), -1);
    const auto [first, second] = *open.begin();
    row[first.first] = first.second;
    row[second.first] = second.second;
    for (size_t f = 0; f < sizes.size(); ++f) {
      if (row[f] >= 0) continue;
      int best = 0;
      int most = -1;
      for (int i = 0; i < sizes[f]; ++i) {
        const int choice = (i + static_cast<int>(rows.size())) % sizes[f];  // ties go round
        const int pairs = gain(row, f, choice);
        if (pairs > most) {
          most = pairs;
          best = choice;
        }
      }
      row[f] = best;
    }
    for (size_t f = 0; f < row.size(); ++f) {
      for (size_t g = f + 1; g < row.size(); ++g) open.erase({{f, row[f]}, {g, row[g]}});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace vqllm::test
