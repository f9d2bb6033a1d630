#include "codegen/lookup_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <mutex>
#include <span>
#include <tuple>

#include "vq/base/check.h"

namespace vqllm {
namespace {

/// A polynomial in x up to the degree of a warp's lanes; generating functions of the number of lanes.
constexpr size_t kTerms = 33;
using Series = std::array<double, kTerms>;

Series Times(const Series& a, const Series& b, size_t degree) {
  Series product{};
  for (size_t i = 0; i <= degree; ++i) {
    if (a[i] == 0) continue;
    for (size_t j = 0; i + j <= degree; ++j) product[i + j] += a[i] * b[j];
  }
  return product;
}

Series Power(Series base, int64_t exponent, size_t degree) {
  Series result{};
  result[0] = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result = Times(result, base, degree);
    if (exponent > 1) base = Times(base, base, degree);
  }
  return result;
}

/// e^(rate x).
Series Exponential(double rate, size_t degree) {
  Series series{};
  series[0] = 1;
  for (size_t i = 1; i <= degree; ++i) series[i] = series[i - 1] * rate / static_cast<double>(i);
  return series;
}

/// Lanes of a conflict group that share banks: those of one copy.
struct Class {
  int random = 0;
  bool zero = false;
  auto operator<=>(const Class&) const = default;
};

/// P(no bank is asked for more than `most` distinct entries) for the random lanes of one class: a bank with c
/// entries has the generating function sum over d <= most of C(c, d) (e^(x/E) - 1)^d; entries elsewhere
/// e^(x/E) each.
double AtMost(int most, const Class& lanes, int64_t entries, int64_t in_shared, int64_t banks) {
  const size_t degree = static_cast<size_t>(lanes.random);
  const double rate = 1.0 / static_cast<double>(entries);
  Series touched = Exponential(rate, degree);  // e^(x/E) - 1: an entry that some lane picks
  touched[0] = 0;
  const auto bank = [&](int64_t size, int64_t distinct) {
    Series sum{};
    Series power{};
    power[0] = 1;
    double choices = 1;
    for (int64_t d = 0; d <= distinct && d <= size && static_cast<size_t>(d) <= degree; ++d) {
      for (size_t i = 0; i <= degree; ++i) sum[i] += choices * power[i];
      choices = choices * static_cast<double>(size - d) / static_cast<double>(d + 1);
      power = Times(power, touched, degree);
    }
    return sum;
  };
  const int64_t small = in_shared / banks;
  int64_t large_banks = in_shared % banks;
  int64_t small_banks = banks - large_banks;
  Series all = Exponential(rate * static_cast<double>(entries - in_shared), degree);
  if (lanes.zero) {
    // Entry 0 is asked for in any case; its bank may have most - 1 others.
    if (most == 0) return 0;
    const bool in_large = large_banks > 0;
    Series forced = bank(small + (in_large ? 1 : 0) - 1, most - 1);
    all = Times(Times(all, forced, degree), Exponential(rate, degree), degree);
    --(in_large ? large_banks : small_banks);
  }
  all = Times(all, Power(bank(small, most), small_banks, degree), degree);
  if (large_banks > 0) all = Times(all, Power(bank(small + 1, most), large_banks, degree), degree);
  double ways = all[degree];
  for (size_t i = 2; i <= degree; ++i) ways *= static_cast<double>(i);
  return std::clamp(ways, 0.0, 1.0);
}

/// Expected wavefronts of one conflict group (a warp, half or quarter), by its classes.
double GroupPasses(std::span<const Class> classes, int64_t entries, int64_t in_shared, int64_t banks) {
  int lanes = 0;
  for (const Class& c : classes) lanes = std::max(lanes, c.random + (c.zero ? 1 : 0));
  double expected = 0;
  for (int most = 0; most < lanes; ++most) {
    double none_above = 1;
    Class last;
    double probability = 1;
    for (const Class& c : classes) {
      if (c.random == 0 && !c.zero) continue;
      if (c != last) probability = AtMost(most, c, entries, in_shared, banks);
      last = c;
      none_above *= probability;
    }
    if (1 - none_above < 1e-12) break;
    expected += 1 - none_above;
  }
  return expected;
}

/// The same with a memory: plans of one request ask for the same few groups.
double RememberedPasses(const StageTier& tier, int bytes, uint32_t random, uint32_t zero) {
  const int lanes = 128 / bytes;
  const int replicas = std::min(tier.replicas, lanes);
  const int64_t banks = lanes / replicas;
  std::array<Class, 32> classes{};
  for (int lane = 0; lane < lanes; ++lane) {
    Class& c = classes[static_cast<size_t>(lane % replicas)];
    c.random += random >> lane & 1;
    c.zero |= (zero >> lane & 1) != 0;
  }
  const auto used = std::span(classes).first(static_cast<size_t>(replicas));
  std::sort(used.begin(), used.end());
  static std::mutex mutex;
  static std::map<std::tuple<int, int, int, int, std::array<Class, 32>>, double> known;
  const int in_shared = tier.shared - std::min(tier.held, tier.shared);
  const std::lock_guard lock(mutex);
  if (known.size() > 100000) known.clear();
  const auto [at, fresh] = known.try_emplace({tier.entries, in_shared, bytes, replicas, classes}, 0.0);
  if (fresh) at->second = GroupPasses(used, tier.entries, in_shared, banks);
  return at->second;
}

}  // namespace

double ExpectedDistinct(int64_t first, int64_t last, int64_t entries, int64_t group, double lookups) {
  double distinct = 0;
  const auto add = [&](int64_t size, double count) {
    if (size > 0)
      distinct += count * -std::expm1(lookups *
                                      std::log1p(-static_cast<double>(size) / static_cast<double>(entries)));
  };
  if (first >= last || lookups <= 0) return 0;
  const int64_t begin = first / group;
  const int64_t end = (last - 1) / group;
  if (begin == end) {
    add(last - first, 1);
    return distinct;
  }
  add((begin + 1) * group - first, 1);
  add(group, static_cast<double>(end - begin - 1));
  add(last - end * group, 1);
  return distinct;
}

LookupCost ExpectedLookup(const StageTier& tier, int bytes, int entry_bytes, const LookupLanes& lanes) {
  VQLLM_CHECK(std::has_single_bit(static_cast<unsigned>(tier.replicas)), "{}", tier.replicas);
  LookupCost cost;
  const uint32_t random = lanes.random;
  const int random_lanes = std::popcount(random);
  const double entries = tier.entries;
  if (tier.shared > tier.held) {
    const double hit = (tier.shared - tier.held) / entries;
    const uint32_t zero = tier.held == 0 ? lanes.zero : 0;
    cost.shared_requests = zero != 0 ? 1 : 1 - std::pow(1 - hit, random_lanes);
    const int part = 128 / bytes;
    for (int first = 0; first < 32; first += part) {
      const uint32_t mask = part == 32 ? ~0u : (1u << part) - 1;
      const uint32_t part_random = random >> first & mask;
      const uint32_t part_zero = zero >> first & mask;
      if (part_random == 0 && part_zero == 0) continue;
      cost.ideal += part_zero != 0 ? 1 : 1 - std::pow(1 - hit, std::popcount(part_random));
      cost.wavefronts += RememberedPasses(tier, bytes, part_random, part_zero);
    }
  }
  const int outside = std::max(tier.held, tier.shared);
  if (outside < tier.entries) {
    const bool zero = outside == 0 && lanes.zero != 0;
    const double miss = (entries - outside) / entries;
    cost.global_requests = zero ? 1 : 1 - std::pow(1 - miss, random_lanes);
    const auto distinct = [&](int block) {
      const int64_t group = std::max(1, block / entry_bytes);
      if (!zero) return ExpectedDistinct(outside, tier.entries, tier.entries, group, random_lanes);
      const int64_t others = std::min<int64_t>(group, tier.entries);
      return 1 + ExpectedDistinct(others, tier.entries, tier.entries, group, random_lanes);
    };
    cost.sectors = distinct(32);
    cost.lines = distinct(128);
  }
  return cost;
}

}  // namespace vqllm
