#include "codegen/reorder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "vq/base/check.h"

namespace vqllm {
namespace {

/// Counts of every entry of every codebook of a stage, [books][entries].
std::vector<int64_t> CountStage(const Tensor& t, size_t stage, int64_t entries) {
  const int64_t books = CodebookCount(t.format, t.rows, t.cols);
  std::vector<int64_t> counts(static_cast<size_t>(books * entries));
  const PackedCodes& codes = t.codes[stage];
  std::vector<uint16_t> row(static_cast<size_t>(codes.count()));
  for (int64_t r = 0; r < codes.rows(); ++r) {
    codes.UnpackRow(r, 0, codes.count(), row.data());
    for (int64_t c = 0; c < codes.count(); ++c) {
      const int64_t book = CodebookIndex(t.format, t.rows, t.cols, r, c);
      ++counts[static_cast<size_t>(book * entries + row[static_cast<size_t>(c)])];
    }
  }
  return counts;
}

}  // namespace

std::vector<StageHistogram> CountCodes(const Tensor& t) {
  std::vector<StageHistogram> histograms;
  if (t.format.kind != FormatKind::kTable) return histograms;
  for (size_t stage = 0; stage < t.codes.size(); ++stage) {
    const int64_t entries = t.format.entries[stage];
    const std::vector<int64_t> all = CountStage(t, stage, entries);
    StageHistogram h;
    h.counts.resize(static_cast<size_t>(entries));
    for (size_t i = 0; i < all.size(); ++i) h.counts[i % static_cast<size_t>(entries)] += all[i];
    h.total = std::accumulate(h.counts.begin(), h.counts.end(), int64_t{0});
    const double mean = static_cast<double>(h.total) / static_cast<double>(entries);
    double variance = 0;
    for (const int64_t count : h.counts)
      variance += (static_cast<double>(count) - mean) * (static_cast<double>(count) - mean);
    const double limit = mean + 3 * std::sqrt(variance / static_cast<double>(entries));
    int64_t served = 0;
    for (const int64_t count : h.counts) {
      if (static_cast<double>(count) <= limit) continue;
      ++h.hot;
      served += count;
    }
    h.hot_share = h.total > 0 ? static_cast<double>(served) / static_cast<double>(h.total) : 0;
    histograms.push_back(std::move(h));
  }
  return histograms;
}

Tensor ReorderByFrequency(Tensor t) {
  if (t.format.kind != FormatKind::kTable) return t;
  const int64_t books = CodebookCount(t.format, t.rows, t.cols);
  const size_t v = static_cast<size_t>(t.format.subvector);
  for (size_t stage = 0; stage < t.codes.size(); ++stage) {
    const int64_t entries = t.format.entries[stage];
    const std::vector<int64_t> counts = CountStage(t, stage, entries);
    std::vector<uint16_t> new_code(counts.size());  // [books][old code]
    std::vector<Half> sorted(t.codebooks[stage].size());
    std::vector<int64_t> order(static_cast<size_t>(entries));
    for (int64_t book = 0; book < books; ++book) {
      const size_t base = static_cast<size_t>(book * entries);
      std::iota(order.begin(), order.end(), int64_t{0});
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return counts[base + static_cast<size_t>(a)] > counts[base + static_cast<size_t>(b)];
      });
      for (size_t rank = 0; rank < order.size(); ++rank) {
        const size_t old = base + static_cast<size_t>(order[rank]);
        new_code[old] = static_cast<uint16_t>(rank);
        std::copy_n(t.codebooks[stage].begin() + static_cast<std::ptrdiff_t>(old * v), v,
                    sorted.begin() + static_cast<std::ptrdiff_t>((base + rank) * v));
      }
    }
    t.codebooks[stage] = std::move(sorted);
    PackedCodes& codes = t.codes[stage];
    std::vector<uint16_t> row(static_cast<size_t>(codes.count()));
    for (int64_t r = 0; r < codes.rows(); ++r) {
      codes.UnpackRow(r, 0, codes.count(), row.data());
      for (int64_t c = 0; c < codes.count(); ++c) {
        uint16_t& code = row[static_cast<size_t>(c)];
        code = new_code[static_cast<size_t>(CodebookIndex(t.format, t.rows, t.cols, r, c) * entries + code)];
      }
      codes.PackRow(r, row.data());
    }
  }
  return t;
}

std::vector<TierShares> SharesOfTiers(const Plan& plan, const Tensor& tensor) {
  const std::vector<StageHistogram> histograms = CountCodes(tensor);
  VQLLM_CHECK(histograms.size() == plan.stages.size(), "{} stages", histograms.size());
  std::vector<TierShares> shares;
  for (size_t stage = 0; stage < histograms.size(); ++stage) {
    const StageTier& tier = plan.stages[stage];
    const StageHistogram& h = histograms[stage];
    TierShares share;
    for (size_t entry = 0; entry < h.counts.size(); ++entry) {
      const double part =
          h.total > 0 ? static_cast<double>(h.counts[entry]) / static_cast<double>(h.total) : 0;
      const int at = static_cast<int>(entry);
      (at < tier.held ? share.held : at < tier.shared ? share.shared : share.global) += part;
    }
    shares.push_back(share);
  }
  return shares;
}

}  // namespace vqllm
