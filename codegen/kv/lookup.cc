#include "codegen/kv/lookup.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>
#include <vector>

namespace vqllm {
namespace {

/// P(n lanes of one unit read d distinct entries of shared memory), by d.
std::vector<double> DistinctOfUnit(int lanes, const StageTier& tier) {
  const double entries = tier.entries;
  const double hit = tier.shared / entries;
  std::vector<double> p(static_cast<size_t>(lanes) + 1);
  p[0] = 1;
  for (int lane = 0; lane < lanes; ++lane) {
    for (int d = lane + 1; d >= 0; --d) {
      const auto at = static_cast<size_t>(d);
      const double same = d <= lane ? p[at] * (1 - hit + d / entries) : 0;
      const double fresh = d > 0 ? p[at - 1] * std::max(0.0, hit - (d - 1) / entries) : 0;
      p[at] = same + fresh;
    }
  }
  return p;
}

std::vector<double> Sum(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> sum(a.size() + b.size() - 1);
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) sum[i + j] += a[i] * b[j];
  }
  return sum;
}

/// Expected maximum of independent counts, from the distribution of each.
double ExpectedLargest(const std::vector<std::vector<double>>& counts) {
  size_t most = 0;
  for (const auto& p : counts) most = std::max(most, p.size());
  double expected = 0;
  for (size_t m = 0; m + 1 < most; ++m) {
    double none_above = 1;
    for (const auto& p : counts)
      none_above *= std::min(
          1.0, std::accumulate(p.begin(), p.begin() + static_cast<int64_t>(std::min(m + 1, p.size())), 0.0));
    expected += 1 - none_above;
  }
  return expected;
}

/// P(none of `banks` banks gets more than m of n lanes, each of which takes part with probability `hit`), by
/// m.
std::vector<double> SpreadOver(int lanes, int banks, double hit) {
  const size_t degree = static_cast<size_t>(lanes);
  std::vector<double> at_most;
  for (size_t m = 0; m <= degree; ++m) {
    // Generating function of lanes: a bank gives sum over j <= m of x^j / j!.
    std::vector<double> all(degree + 1);
    double term = 1;
    for (size_t j = 0; j <= degree; ++j) {
      all[j] = term;
      term *= (1 - hit) / static_cast<double>(j + 1);
    }
    std::vector<double> bank(std::min(m, degree) + 1);
    term = 1;
    for (size_t j = 0; j < bank.size(); ++j) {
      bank[j] = term;
      term *= hit / banks / static_cast<double>(j + 1);
    }
    for (int b = 0; b < banks; ++b) {
      std::vector<double> product = Sum(all, bank);
      product.resize(degree + 1);
      all = product;
    }
    double ways = all[degree];
    for (size_t j = 2; j <= degree; ++j) ways *= static_cast<double>(j);
    at_most.push_back(ways);
  }
  std::vector<double> p = at_most;  // of exactly m: differences
  for (size_t m = degree; m > 0; --m) p[m] -= p[m - 1];
  return p;
}

double Wavefronts(const StageTier& tier, int units, int banks, std::span<const int> lanes) {
  std::vector<std::vector<double>> counts;
  if (units % banks == 0) {
    std::map<int, std::map<int, int>> by_bank;  // bank -> unit -> lanes
    for (const int unit : lanes) {
      if (unit >= 0) ++by_bank[unit % banks][unit];
    }
    for (const auto& [bank, by_unit] : by_bank) {
      std::vector<double> p = {1};
      for (const auto& [unit, n] : by_unit) p = Sum(p, DistinctOfUnit(n, tier));
      counts.push_back(p);
    }
  } else {
    const int step = std::gcd(units, banks);
    std::map<int, int> by_residue;
    for (const int unit : lanes) {
      if (unit >= 0) ++by_residue[unit % step];
    }
    for (const auto& [residue, n] : by_residue)
      counts.push_back(SpreadOver(n, banks / step, static_cast<double>(tier.shared) / tier.entries));
  }
  return ExpectedLargest(counts);
}

}  // namespace

LookupCost ExpectedUnitLookup(const StageTier& tier, int units, int bytes, int entry_bytes,
                              const LaneUnits& lanes) {
  LookupCost cost;
  const double hit = static_cast<double>(tier.shared) / tier.entries;
  const auto any = [&](double probability, std::span<const int> of) {
    const auto count = std::count_if(of.begin(), of.end(), [](int unit) { return unit >= 0; });
    return 1 - std::pow(1 - probability, static_cast<double>(count));
  };
  if (tier.shared > 0) {
    cost.shared_requests = any(hit, lanes);
    const size_t part = static_cast<size_t>(128 / bytes);
    for (size_t first = 0; first < 32; first += part) {
      const std::span<const int> group = std::span(lanes).subspan(first, part);
      cost.ideal += any(hit, group);
      cost.wavefronts += Wavefronts(tier, units, 128 / bytes, group);
    }
  }
  if (tier.shared < tier.entries) {
    cost.global_requests = any(1 - hit, lanes);
    const auto distinct = [&](int block) {
      std::map<int, int> lookups;  // by the sector or line of an entry
      for (const int unit : lanes) {
        if (unit >= 0) ++lookups[unit * entry_bytes / block];
      }
      double sum = 0;
      for (const auto& [column, n] : lookups)
        sum += ExpectedDistinct(tier.shared, tier.entries, tier.entries, 1, n);
      return sum;
    };
    cost.sectors = distinct(32);
    cost.lines = distinct(128);
  }
  return cost;
}

}  // namespace vqllm
