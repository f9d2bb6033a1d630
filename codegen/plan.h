#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/layout.h"
#include "codegen/request.h"

namespace vqllm {

/// Where the entries of one stage live. Entries below `held` are in the registers of a warp, lane l holding
/// entry l; those below `shared` in shared memory, `replicas` times; the others in global memory (L2).
struct StageTier {
  int entries = 0;
  int code_bits = 0;
  int held = 0;
  int shared = 0;
  int replicas = 1;
  bool operator==(const StageTier&) const = default;
};

/// One kernel launch; kernels of a plan run in order.
struct KernelLaunch {
  std::string kernel;
  int grid_x = 1;
  int grid_y = 1;
  int grid_z = 1;
  int threads = 32;
  int shared_bytes = 0;                 ///< dynamic
  std::vector<std::string> parameters;  ///< names in order: codes codebooks scales factors x bias y partial w
  bool operator==(const KernelLaunch&) const = default;
};

/// Every choice that an emitted file rests on, and what follows from the choices. Plain data: the same plan
/// gives the same bytes.
struct Plan {
  OpKind op = OpKind::kGemv;
  Format format;
  int m = 1;
  int n = 0;
  int k = 0;
  DType activation = DType::kF16;
  bool bias = false;
  std::string gpu;
  int arch = 80;
  Level level = Level::kBest;
  PlanPins pins;  ///< what of the choices below the caller fixed

  Compute compute = Compute::kFma;
  Fusion fusion = Fusion::kNone;
  WeightLayout layout;
  std::vector<StageTier> stages;  ///< table and lattice
  bool segmented = false;         ///< a segment has codebooks of its own, staged when it begins
  int warps_n = 4;
  int warps_k = 1;
  int split = 1;        ///< blocks along the reduction; > 1: partial sums and a second kernel
  int token_tile = 1;   ///< tokens of a block
  int step_groups = 1;  ///< groups of a warp in one step, kFma; groups of the warps along k, kMma
  int x_slots = 1;      ///< buffers of activations in shared memory
  int x_vector = 8;     ///< fp16 of one copy of activations: 8, 4, 2 or 1, as k allows

  // Derived by CompletePlan.
  int steps_segment = 0;    ///< steps of a full segment
  int steps = 0;            ///< steps along the reduction, all segments
  int steps_split = 0;      ///< steps of one block
  bool ragged = false;      ///< some group has fewer chunks than lanes
  int x_step_cols = 0;      ///< columns of x staged at once
  int piece_pitch = 0;      ///< fp16 from piece to piece of staged x: odd multiples of 16 bytes
  int token_pitch = 0;      ///< fp16 from token to token of staged x
  int codebook_bytes = 0;   ///< in shared memory
  int x_bytes = 0;          ///< all slots
  int weight_bytes = 0;     ///< decoded tile in shared memory (fusion shared)
  int table_bytes = 0;      ///< products of entries and activations (compute lookup_table)
  int reduce_bytes = 0;     ///< sums of warps; overlays codebooks and x
  int shared_bytes = 0;     ///< of a block
  int register_budget = 0;  ///< a thread; what __launch_bounds__ asks for
  int min_blocks = 1;       ///< resident blocks an SM that the budget keeps

  std::vector<KernelLaunch> launches;

  int Threads() const { return 32 * warps_n * warps_k; }
  int BlockRows() const { return warps_n * layout.TileRows(); }
};

/// Computes the derived members. Throws Error where the plan does not fit the arch.
void CompletePlan(Plan& plan, const GpuSpec& gpu);

/// Canonical JSON: fixed order of keys, no spaces, no floating point.
std::string ToJson(const Plan& plan);

}  // namespace vqllm
