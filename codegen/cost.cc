#include "codegen/cost.h"

#include <algorithm>

#include "codegen/decode/decoder.h"
#include "codegen/op.h"
#include "vq/tensor.h"

namespace vqllm {
namespace {

/// Instructions of a decoder for one unit of a warp, without its loads.
double DecodeInstructions(const Plan& plan) {
  const Format& f = plan.format;
  const UnitShape unit = UnitOf(f);
  if (f.kind == FormatKind::kDense) return 0.5;
  if (f.kind == FormatKind::kInt) return 2.5 * unit.Pairs();
  double instructions = 0;
  for (int stage = 0; stage < f.stages(); ++stage) {
    const StageTier& tier = plan.stages[f.kind == FormatKind::kLattice ? 0 : static_cast<size_t>(stage)];
    instructions += 3;  // extract, address
    if (tier.held > 0) instructions += unit.Pairs() + 2;
    if (tier.shared > 0 && tier.shared < tier.entries) instructions += 3;
    if (f.kind == FormatKind::kLattice) instructions += stage == 0 ? 26 : 30;
    if (f.kind == FormatKind::kTable && stage > 0) instructions += unit.Pairs();
  }
  return instructions;
}

}  // namespace

double PlanCounters::FirstTouchBytes() const {
  return kSectorBytes * (traffic[Metric::kLoadSectorsPerLaunch] + traffic[Metric::kStoreSectorsPerLaunch]);
}
double PlanCounters::DramBytes(const GpuSpec& gpu) const {
  // Written once and read once: what is held is half of it.
  const bool held = partial_bytes / 2 <= gpu.l2_mib.value * 1024 * 1024 / 2;
  return FirstTouchBytes() - (held ? partial_bytes : 0);
}
double PlanCounters::L2Bytes() const {
  return kSectorBytes * (traffic[Metric::kLoadSectorsPerBlock] + traffic[Metric::kStoreSectorsPerBlock]);
}
double PlanCounters::SharedWavefronts() const {
  return traffic[Metric::kSharedLoadWavefronts] + traffic[Metric::kSharedStoreWavefronts] +
         traffic[Metric::kMatrixLoadWavefronts] + traffic[Metric::kAsyncCopyWavefronts];
}
double PlanCounters::SharedWavefrontsIdeal() const {
  return traffic[Metric::kSharedLoadWavefrontsIdeal] + traffic[Metric::kSharedStoreWavefrontsIdeal] +
         traffic[Metric::kMatrixLoadWavefrontsIdeal] + traffic[Metric::kAsyncCopyWavefronts];
}
double PlanCounters::LsuPasses() const { return SharedWavefronts() + shuffles + traffic.global_lines; }

PlanCounters PredictCounters(const Plan& plan) {
  const WeightLayout& layout = plan.layout;
  const Format& f = plan.format;
  const UnitShape unit = UnitOf(f);
  PlanCounters c;
  c.traffic = OpOf(plan.op).traffic(plan);
  const Traffic& t = c.traffic;
  const double n = plan.n;
  const double k = plan.k;
  const double m = plan.m;
  c.compulsory_bytes = n * k * EffectiveBits(f, plan.n, plan.k) / 8 +
                       (plan.op == OpKind::kDequant ? 2 * n * k : 2 * m * (n + k));
  c.partial_bytes = plan.split > 1 ? 2 * 4 * plan.split * m * n : 0;
  const double token_blocks = plan.launches[0].grid_y;
  c.code_requests = token_blocks * static_cast<double>(layout.Words()) / 32 / layout.vector_words;

  const double warp_units = static_cast<double>(layout.row_tiles) * layout.TileUnitRows() *
                            static_cast<double>(layout.TotalChunks()) * layout.ChunkUnits() * token_blocks /
                            32;
  c.instructions = t[Metric::kGlobalLoadRequests] + t[Metric::kGlobalStoreRequests] +
                   t[Metric::kSharedLoadRequests] + t[Metric::kSharedStoreRequests] +
                   t[Metric::kMatrixLoadRequests] + 4 * t[Metric::kAsyncCopyRequests] +
                   t[Metric::kTensorInstructions] + t[Metric::kBarriers];
  if (plan.compute == Compute::kTable) {
    // Of a code: its extraction, an address, an add of each token.
    const double codes = warp_units * f.stages();
    c.instructions += codes * (2 + plan.token_tile);
    double entries = 0;
    for (const StageTier& tier : plan.stages) entries += tier.entries;
    const double blocks = static_cast<double>(plan.launches[0].grid_x) * plan.launches[0].grid_y;
    c.fma = blocks * static_cast<double>(layout.TotalChunks() * layout.ChunkCols()) * entries / 32 *
            plan.token_tile;
    // Activations become fp32 once for each entry: as many conversions as products.
    c.instructions += 2 * c.fma;
    return c;
  }
  c.instructions += warp_units * DecodeInstructions(plan);
  for (const StageTier& tier : plan.stages) {
    if (tier.held > 0) c.shuffles += warp_units * unit.Pairs();
  }
  if (plan.fusion == Fusion::kRegisterShuffle) {
    // Four exchanges for four pairs, each with three selects.
    c.shuffles += warp_units * unit.Pairs();
    c.instructions += 4 * warp_units * unit.Pairs();
  }
  if (layout.unit_rows > 1 && plan.compute == Compute::kMma) c.instructions += warp_units * unit.Pairs();
  if (plan.compute == Compute::kFma) {
    c.fma = warp_units * unit.Values() * plan.token_tile;
    // Values to fp32: of a weight once, of an activation once a row slot set.
    c.instructions +=
        c.fma + warp_units * unit.Values() + warp_units * unit.cols * plan.token_tile / layout.row_slots;
  }
  if (f.scale == ScaleKind::kGroup)
    c.instructions += warp_units * (plan.compute == Compute::kMma ? unit.Pairs() + 4 : 2);
  if (plan.compute == Compute::kStore) c.instructions += warp_units * 3 * unit.Values();
  return c;
}

ModelledTime ModelTime(const Plan& plan, const PlanCounters& c, const GpuSpec& gpu) {
  const KernelLaunch& main = plan.launches[0];
  const Occupancy occupancy =
      ComputeOccupancy(LimitsOf(gpu.arch), plan.Threads(), plan.register_budget, plan.shared_bytes);
  // A lane asks for the codes of all its rows, plane by plane, before it waits.
  const int parallel = std::max(1, plan.layout.row_slots * plan.layout.Planes());
  return ModelTime({.blocks = static_cast<double>(main.grid_x) * main.grid_y * main.grid_z,
                    .dram_bytes = c.DramBytes(gpu),
                    .l2_bytes = c.L2Bytes(),
                    .lsu_passes = c.LsuPasses(),
                    .instructions = c.instructions,
                    .fma = c.fma,
                    .tensor_flops = c.traffic[Metric::kTensorFlops],
                    .waiting_loads = c.code_requests,
                    .resident_blocks = static_cast<double>(occupancy.blocks),
                    .block_loads = plan.Threads() / 32.0 * parallel,
                    .launches = static_cast<double>(plan.launches.size())},
                   gpu);
}

}  // namespace vqllm
