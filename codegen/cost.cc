#include "codegen/cost.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "codegen/decode/decoder.h"
#include "vq/base/rng.h"
#include "vq/tensor.h"

namespace vqllm {
namespace {

// Model constants; all are estimates until a GPU calibrates them.
constexpr double kDramLatency = 650e-9;  // seconds
constexpr double kL2LatencyClocks = 270;
constexpr double kLaunch = 2.2e-6;       // seconds a kernel
constexpr double kDramEfficiency = 0.9;  // of the vendor's peak that a stream reaches
constexpr double kIssueOverhead = 1.1;   // SASS over PTX instructions without moves
constexpr int kIssueSlots = 4;           // a clock and SM

double CeilDiv(double a, double b) { return std::ceil(a / b); }

/// Average wavefronts of one stage's lookup by a warp, and the ideal.
struct LookupCost {
  double wavefronts = 0;
  double ideal = 0;
  double lines = 0;  // of global memory
  double instructions = 0;
};

/// Random codes: hit shares follow the sizes of the tiers. Real tensors are skewed; see FrequencyReorder.
LookupCost CostOfLookup(const StageTier& tier, int entry_words) {
  LookupCost cost;
  const int vector_words = std::min(entry_words, 4);
  const int vectors = entry_words / vector_words;
  const double in_shared =
      tier.shared <= tier.held ? 0 : static_cast<double>(tier.shared - tier.held) / tier.entries;
  const double in_global =
      static_cast<double>(tier.entries - std::max(tier.shared, tier.held)) / tier.entries;
  cost.instructions = 3.0 + vectors;  // extract, address, load
  if (tier.held > 0) cost.instructions += entry_words + 2;
  if (tier.shared > 0) {
    const double ideal = vectors * vector_words;
    cost.ideal = ideal * in_shared;
    cost.wavefronts = ideal * in_shared * ConflictFactor(tier.shared, 4 * vector_words, tier.replicas);
  }
  if (tier.shared > 0 && in_global > 0) cost.instructions += 3;
  // A warp's 32 lookups touch almost as many different 128-byte lines as the table has, up to 32.
  const double table_lines = std::max(1.0, tier.entries * entry_words * 4 / 128.0);
  const double lanes = 32 * in_global;
  cost.lines = in_global <= 0 ? 0 : vectors * table_lines * (1 - std::pow(1 - 1 / table_lines, lanes));
  return cost;
}

}  // namespace

double ConflictFactor(int entries, int bytes, int replicas) {
  const int lanes = 32 * 4 / bytes;
  const int banks = lanes;
  if (replicas % banks == 0) return 1;  // every lane has a bank of its own
  // Beyond the number of banks the factor hardly depends on the entries: powers of two are enough.
  entries = static_cast<int>(std::bit_floor(static_cast<unsigned>(entries)));
  static std::mutex mutex;
  static std::map<std::tuple<int, int, int>, double> known;
  const std::lock_guard lock(mutex);
  double& factor = known[{entries, bytes, replicas}];
  if (factor != 0) return factor;
  // 4 bytes: a warp over 32 banks; 8: a half warp over 16 bank pairs; 16: a quarter warp over 8 bank quads. A
  // bank serves one word a wavefront; lanes that read the same word share it.
  Rng rng(1);
  double total = 0;
  constexpr int kTrials = 4000;
  std::array<int, 32> load;
  std::array<int64_t, 32> slots;
  for (int trial = 0; trial < kTrials; ++trial) {
    load.fill(0);
    int worst = 0;
    for (int lane = 0; lane < lanes; ++lane) {
      const int64_t entry = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(entries)));
      slots[static_cast<size_t>(lane)] = entry * replicas + lane % replicas;
      bool repeated = false;
      for (int other = 0; other < lane; ++other)
        repeated |= slots[static_cast<size_t>(other)] == slots[static_cast<size_t>(lane)];
      if (repeated) continue;
      worst = std::max(worst, ++load[static_cast<size_t>(slots[static_cast<size_t>(lane)] % banks)]);
    }
    total += worst;
  }
  return factor = total / kTrials;
}

PlanCounters PredictCounters(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  const Format& f = plan.format;
  PlanCounters c;
  const KernelLaunch& main = plan.launches[0];
  c.blocks = static_cast<int64_t>(main.grid_x) * main.grid_y * main.grid_z;
  const double token_blocks = main.grid_y;
  const double codes = 4.0 * static_cast<double>(layout.Words());
  const double scales = static_cast<double>(ScaleGroups(f, plan.k)) *
                        (f.scale == ScaleKind::kGroup || f.scale == ScaleKind::kPerOutput ? plan.n : 0) *
                        (UnitOf(f).offset ? 4.0 : 2.0);
  double codebooks = 0;
  const int entry_words = f.kind == FormatKind::kTable ? EntryWords(f.subvector) : 1;
  if (f.kind == FormatKind::kTable) {
    for (const int entries : f.entries)
      codebooks += static_cast<double>(CodebookCount(f, plan.n, plan.k)) * entries * entry_words * 4;
  } else if (f.kind == FormatKind::kLattice) {
    codebooks = 1024;
  }
  const double x = plan.op == OpKind::kDequant ? 0 : 2.0 * plan.m * plan.k;
  const double y = plan.op == OpKind::kDequant ? 2.0 * plan.n * plan.k : 2.0 * plan.m * plan.n;
  const double partial = plan.split > 1 ? 4.0 * plan.split * plan.m * plan.n : 0;
  c.compulsory_bytes =
      8 * 0.125 * (static_cast<double>(plan.n) * plan.k * EffectiveBits(f, plan.n, plan.k) / 8) + x + y;
  c.dram_bytes = codes + scales + codebooks + x + y + partial;

  // Each block stages its activations and codebook; every token tile reads the codes again.
  double fill = 0;
  double fill_words = 0;
  for (const StageTier& tier : plan.stages) {
    fill += 4.0 * entry_words * std::max(tier.shared, tier.held);
    fill_words += static_cast<double>(tier.shared) * tier.replicas * entry_words;
  }
  const double loads =
      plan.segmented ? std::max(1.0, static_cast<double>(plan.steps_split) / plan.steps_segment) : 1;
  const double staged =
      plan.op == OpKind::kDequant ? 0 : 2.0 * plan.token_tile * plan.steps_split * plan.x_step_cols;
  c.l2_bytes = token_blocks * (codes + scales) + static_cast<double>(c.blocks) * (fill * loads + staged) + y +
               2 * partial;

  // Lookups of all weights, once for each token tile.
  const double units = static_cast<double>(layout.row_tiles) * layout.TileUnitRows() *
                       static_cast<double>(layout.TotalChunks()) * layout.ChunkUnits() * token_blocks;
  const double warp_units = units / 32;
  double unit_instructions = 0;
  for (int stage = 0; stage < f.stages(); ++stage) {
    const StageTier& tier = plan.stages[f.kind == FormatKind::kLattice ? 0 : static_cast<size_t>(stage)];
    const LookupCost lookup = CostOfLookup(tier, entry_words);
    c.shared_wavefronts += warp_units * lookup.wavefronts;
    c.shared_ideal += warp_units * lookup.ideal;
    c.global_lines += warp_units * lookup.lines;
    unit_instructions += lookup.instructions;
    if (f.kind == FormatKind::kLattice) unit_instructions += 26;
    if (f.kind == FormatKind::kTable && stage > 0) unit_instructions += (f.subvector + 1) / 2;
    if (f.kind == FormatKind::kLattice && stage > 0) unit_instructions += 4;
  }
  const UnitShape unit = UnitOf(f);
  if (f.kind == FormatKind::kInt) unit_instructions += 2.5 * unit.Pairs();
  if (f.kind == FormatKind::kDense) unit_instructions += 0.5;
  const double fill_waves = static_cast<double>(c.blocks) * loads * fill_words / 32;
  c.shared_wavefronts += fill_waves;
  c.shared_ideal += fill_waves;

  const double code_loads = token_blocks * codes / 4 / 32 / layout.vector_words;
  c.load_requests = code_loads;
  c.global_lines +=
      token_blocks * codes / 128 + static_cast<double>(c.blocks) * (fill * loads + staged) / 128;
  c.instructions = warp_units * unit_instructions + code_loads * 2 +
                   static_cast<double>(c.blocks) * fill_words * loads / 32 * 2;
  if (plan.op != OpKind::kDequant) {
    const double staged_waves = static_cast<double>(c.blocks) * staged / 128;
    c.shared_wavefronts += staged_waves;
    c.shared_ideal += staged_waves;
    c.instructions += staged_waves * 4;
    const double fragment_values = warp_units * unit.cols;  // activations that meet a row slot, a token
    const double tokens = plan.token_tile;
    const double x_waves = fragment_values * tokens * 2 * 32 / 128 / layout.row_slots;
    if (plan.compute == Compute::kFma) {
      const double fma = warp_units * unit.Values() * tokens;
      c.fma = fma;
      c.instructions += fma + warp_units * unit.Values() + fragment_values * tokens / layout.row_slots * 1.25;
      c.shared_wavefronts += x_waves;
      c.shared_ideal += x_waves;
    } else {
      const double b_waves = x_waves;  // each warp reads fragment B once for all of its rows
      c.shared_wavefronts += b_waves;
      c.shared_ideal += b_waves;
      const double mmas = units * unit.cols / 256 * tokens / 8;
      c.mma_flop = mmas * 4096;
      c.instructions += mmas + fragment_values * tokens / 8 / layout.row_slots;
    }
    if (f.scale == ScaleKind::kGroup) c.instructions += warp_units * (f.kind == FormatKind::kInt ? 2 : 3);
  }
  return c;
}

ModelledTime ModelTime(const Plan& plan, const PlanCounters& c, const GpuSpec& gpu) {
  const Occupancy occupancy =
      ComputeOccupancy(LimitsOf(gpu.arch), plan.Threads(), plan.register_budget, plan.shared_bytes);
  const double clock = gpu.clock_ghz.value * 1e9;
  const double sms = gpu.sms.value;
  const double blocks = static_cast<double>(c.blocks);
  const double share = CeilDiv(blocks, sms) / blocks;  // of the busiest SM
  ModelledTime t;
  t.dram_us = 1e6 * c.dram_bytes / (kDramEfficiency * gpu.dram_gb_per_s.value * 1e9);
  t.l2_us = 1e6 * c.l2_bytes / (gpu.l2_gb_per_s.value * 1e9);
  t.lsu_us = 1e6 * (c.shared_wavefronts + c.global_lines) * share / clock;
  t.issue_us = 1e6 * c.instructions * kIssueOverhead * share / (kIssueSlots * clock);
  t.fp32_us = 1e6 * c.fma * 32 / gpu.fp32_lanes.value * share / clock;
  t.tensor_us = 1e6 * c.mma_flop * share / (gpu.mma_flop_clock.value * clock);
  // Little's law: loads of codes in flight are the resident warps' times the independent loads of each.
  const double warps = std::min<double>(occupancy.blocks, CeilDiv(blocks, sms)) * plan.Threads() / 32.0;
  const double parallel = std::max(1, plan.layout.row_slots * plan.layout.Planes());
  t.latency_us = 1e6 * c.load_requests * share * kDramLatency / (warps * parallel);
  const std::pair<double, const char*> terms[] = {
      {t.dram_us, "dram"}, {t.l2_us, "l2"},         {t.lsu_us, "lsu"},        {t.issue_us, "issue"},
      {t.fp32_us, "fp32"}, {t.tensor_us, "tensor"}, {t.latency_us, "latency"}};
  double second = 0;
  for (const auto& [us, name] : terms) {
    if (us > t.lower_us) {
      second = t.lower_us;
      t.lower_us = us;
      t.bound = name;
    } else {
      second = std::max(second, us);
    }
  }
  const double serial = 1e6 * (kDramLatency * 2 + kL2LatencyClocks / clock);
  t.upper_us = t.lower_us + second + serial + 1e6 * kLaunch * static_cast<double>(plan.launches.size());
  return t;
}

}  // namespace vqllm
