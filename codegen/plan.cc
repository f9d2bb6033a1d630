#include "codegen/plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "codegen/decode/decoder.h"
#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/tensor.h"

namespace vqllm {
namespace {

int CeilDiv(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

/// fp16 from piece to piece so that lanes at neighbouring pieces meet different banks: an odd number of
/// 16-byte pieces, or of 8-byte pieces where 16 do not divide.
int PiecePitch(int cols) {
  const int unit = cols % 8 == 0 ? 8 : 4;
  return cols / unit % 2 == 1 ? cols : cols + unit;
}

/// Of a token: with half a bank row (64 bytes) between tokens, the two token rows that a quarter warp reads
/// in one 16-byte access of an mma fragment meet different banks.
int TokenPitch(const Plan& plan, int pieces) {
  const int used = pieces * plan.piece_pitch;
  if (plan.compute != Compute::kMma) return (used + 7) / 8 * 8;
  // Rows of ldmatrix: an odd number of 16 bytes apart, eight of them meet different banks.
  if (plan.fusion != Fusion::kZeroShuffle) return ((used + 7) / 8 | 1) * 8;
  int pitch = (used + 63) / 64 * 64 + 32;
  if (pitch - 64 >= used) pitch -= 64;
  return pitch;
}

}  // namespace

void CompletePlan(Plan& plan, const GpuSpec& gpu) {
  const WeightLayout& layout = plan.layout;
  const int groups_segment = CeilDiv(layout.segment_chunks, layout.lanes_k);
  const int groups_last = CeilDiv(layout.last_chunks, layout.lanes_k);
  plan.step_groups =
      std::min(plan.step_groups,
               plan.compute == Compute::kMma ? plan.step_groups : std::max(groups_segment, groups_last));
  plan.steps_segment = CeilDiv(groups_segment, plan.step_groups);
  plan.steps = (layout.segments - 1) * plan.steps_segment + CeilDiv(groups_last, plan.step_groups);
  plan.split = std::min(plan.split, plan.steps);
  plan.steps_split = CeilDiv(plan.steps, plan.split);
  plan.split = CeilDiv(plan.steps, plan.steps_split);
  plan.ragged = layout.segment_chunks % layout.lanes_k != 0 || layout.last_chunks % layout.lanes_k != 0;

  plan.codebook_bytes = 0;
  const int entry_bytes = plan.format.kind == FormatKind::kTable ? 4 * EntryWords(plan.format.subvector) : 4;
  for (const StageTier& tier : plan.stages) plan.codebook_bytes += tier.shared * tier.replicas * entry_bytes;
  plan.codebook_bytes = (plan.codebook_bytes + 15) / 16 * 16;

  plan.x_bytes = 0;
  plan.reduce_bytes = 0;
  if (plan.compute != Compute::kStore) {
    plan.x_step_cols = plan.step_groups * layout.lanes_k * layout.ChunkCols();
    // ldmatrix reads columns in their order; tables are made by lanes that read the same column.
    const bool ordered = plan.fusion == Fusion::kShared || plan.fusion == Fusion::kRegisterShuffle ||
                         plan.compute == Compute::kTable;
    plan.piece_pitch = ordered ? layout.PieceCols() : PiecePitch(layout.PieceCols());
    const int pieces =
        plan.x_step_cols / layout.PieceCols() + (plan.ragged && plan.compute == Compute::kFma ? 1 : 0);
    plan.token_pitch = TokenPitch(plan, pieces);
    plan.x_bytes = plan.x_slots * plan.token_tile * plan.token_pitch * 2;
    for (plan.x_vector = 8; plan.k % plan.x_vector != 0 || layout.PieceCols() % plan.x_vector != 0;)
      plan.x_vector /= 2;
    if (plan.compute == Compute::kMma)
      plan.reduce_bytes = plan.warps_k * plan.token_tile * (plan.BlockRows() + 4) * 4;
  }
  plan.weight_bytes = 0;
  if (plan.fusion == Fusion::kShared)
    plan.weight_bytes =
        plan.Threads() / 32 * layout.TileRows() * (layout.lanes_k * layout.PieceCols() + 8) * 2;
  plan.table_bytes = 0;
  if (plan.compute == Compute::kTable) {
    for (const StageTier& tier : plan.stages)
      plan.table_bytes += tier.entries * layout.ChunkUnits() * plan.token_tile * 4;
    plan.table_bytes = (plan.table_bytes + 15) / 16 * 16;
  }
  plan.shared_bytes =
      std::max(plan.codebook_bytes + plan.x_bytes + plan.weight_bytes + plan.table_bytes, plan.reduce_bytes);
  if (plan.fusion == Fusion::kRegisterShuffle && (layout.unit_rows > 1 || layout.PieceCols() % 8 != 0)) {
    Fail("plan: fusion: found register_shuffle for pieces of {} columns, allowed: multiples of 8",
         layout.unit_rows > 1 ? 1 : layout.PieceCols());
  }

  const ArchLimits& limits = LimitsOf(gpu.arch);
  if (plan.shared_bytes > limits.shared_block) {
    Fail("plan: shared memory: found {} bytes a block, allowed on {}: {}", plan.shared_bytes, gpu.Arch(),
         limits.shared_block);
  }
  const Occupancy occupancy =
      ComputeOccupancy(limits, plan.Threads(), plan.register_budget, plan.shared_bytes);
  if (occupancy.blocks < 1) {
    Fail("plan: registers: found {} a thread for {} threads, allowed on {}: {}", plan.register_budget,
         plan.Threads(), gpu.Arch(), limits.registers_sm / plan.Threads());
  }
  // The launch bound leaves ptxas more than the estimate: a bound that is too tight forces spills, one that
  // is too loose costs nothing where the registers are not needed.
  const int lenient =
      std::min({255, plan.register_budget + 64, limits.registers_sm / plan.Threads() / 8 * 8});
  plan.min_blocks = ComputeOccupancy(limits, plan.Threads(), lenient, plan.shared_bytes).blocks;
  VQLLM_CHECK(plan.min_blocks >= 1);

  std::vector<std::string> parameters = {"codes"};
  if (HasCodebook(plan.format)) parameters.emplace_back("codebooks");
  if (plan.format.kind == FormatKind::kInt || plan.format.scale == ScaleKind::kGroup ||
      plan.format.scale == ScaleKind::kPerOutput)
    parameters.emplace_back("scales");
  if (plan.format.scale == ScaleKind::kPerTensor) parameters.emplace_back("factors");
  plan.launches.clear();
  KernelLaunch main;
  main.kernel = ToString(plan.op);
  main.grid_x = CeilDiv(layout.row_tiles, plan.warps_n);
  main.threads = plan.Threads();
  main.shared_bytes = plan.shared_bytes;
  main.parameters = parameters;
  if (plan.compute == Compute::kStore) {
    main.parameters.emplace_back("w");
    main.grid_z = plan.split;
    plan.launches.push_back(main);
    return;
  }
  main.grid_y = CeilDiv(plan.m, plan.token_tile);
  main.grid_z = plan.split;
  main.parameters.emplace_back("x");
  if (plan.split == 1 && plan.bias) main.parameters.emplace_back("bias");
  main.parameters.emplace_back(plan.split == 1 ? "y" : "partial");
  plan.launches.push_back(main);
  if (plan.split == 1) return;
  KernelLaunch sum;
  sum.kernel = "sum_partials";
  sum.threads = 256;
  sum.grid_x = CeilDiv(static_cast<int64_t>(plan.m) * plan.n, sum.threads);
  sum.parameters = {"partial"};
  if (plan.bias) sum.parameters.emplace_back("bias");
  sum.parameters.emplace_back("y");
  plan.launches.push_back(sum);
}

std::string ToJson(const Plan& plan) {
  nlohmann::ordered_json json;
  json["op"] = ToString(plan.op);
  json["format"] = nlohmann::ordered_json::parse(ToJson(plan.format));
  json["m"] = plan.m;
  json["n"] = plan.n;
  json["k"] = plan.k;
  json["activation"] = ToString(plan.activation);
  json["bias"] = plan.bias;
  json["gpu"] = plan.gpu;
  json["arch"] = plan.arch;
  json["level"] = ToString(plan.level);
  json["compute"] = ToString(plan.compute);
  json["fusion"] = ToString(plan.fusion);
  const WeightLayout& layout = plan.layout;
  json["layout"] = {{"unit_rows", layout.unit_rows},       {"unit_cols", layout.unit_cols},
                    {"unit_bits", layout.unit_bits},       {"piece_units", layout.piece_units},
                    {"chunk_pieces", layout.chunk_pieces}, {"chunk_words", layout.chunk_words},
                    {"lanes_row", layout.lanes_row},       {"lanes_k", layout.lanes_k},
                    {"row_slots", layout.row_slots},       {"row_tiles", layout.row_tiles},
                    {"segments", layout.segments},         {"segment_chunks", layout.segment_chunks},
                    {"last_chunks", layout.last_chunks}};
  json["stages"] = nlohmann::ordered_json::array();
  for (const StageTier& tier : plan.stages) {
    json["stages"].push_back({{"entries", tier.entries},
                              {"held", tier.held},
                              {"shared", tier.shared},
                              {"replicas", tier.replicas}});
  }
  json["segmented"] = plan.segmented;
  json["warps_n"] = plan.warps_n;
  json["warps_k"] = plan.warps_k;
  json["split"] = plan.split;
  json["token_tile"] = plan.token_tile;
  json["step_groups"] = plan.step_groups;
  json["x_slots"] = plan.x_slots;
  json["x_vector"] = plan.x_vector;
  json["shared_bytes"] = plan.shared_bytes;
  json["register_budget"] = plan.register_budget;
  json["min_blocks"] = plan.min_blocks;
  json["launches"] = nlohmann::ordered_json::array();
  for (const KernelLaunch& launch : plan.launches) {
    json["launches"].push_back({{"kernel", launch.kernel},
                                {"grid", {launch.grid_x, launch.grid_y, launch.grid_z}},
                                {"threads", launch.threads},
                                {"shared_bytes", launch.shared_bytes},
                                {"parameters", launch.parameters}});
  }
  return json.dump();
}

}  // namespace vqllm
