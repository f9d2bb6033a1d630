#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/gpu.h"
#include "codegen/layout.h"
#include "vq/format.h"

namespace vqllm {

enum class OpKind : uint8_t {
  kDequant,  ///< w [n, k] = the stored weights, scaled
  kGemv,     ///< y [m, n] = x [m, k] W^T, 1 <= m <= 16
  kGemm,     ///< the same for any m
};

/// How far the optimisations of the VQ-LLM paper (section VII) go, so that its ablation can be repeated.
enum class Level : uint8_t {
  kGc,    ///< all codebooks in global memory
  kSc,    ///< all codebooks in shared memory, single copy
  kO1,    ///< hot entries in shared memory as far as the slack goes, the others in global memory
  kO2,    ///< and the hottest 32 in registers
  kO3,    ///< and the work split along the axes where the codebook switches
  kO4,    ///< and weights decoded straight into the registers of the mma
  kBest,  ///< the cheapest plan of all, what the paper lacks included
};
/// All of them, in the order of the paper's ablation.
inline constexpr Level kLevels[] = {Level::kGc, Level::kSc, Level::kO1,  Level::kO2,
                                    Level::kO3, Level::kO4, Level::kBest};

/// What the decoded weights are used for.
enum class Compute : uint8_t {
  kStore,  ///< written out (dequant)
  kFma,    ///< fp32 fused multiply-add, one lane a row and a share of the columns
  kMma,    ///< mma.sync m16n8k16, fp32 accumulators: rows of W are the 16, tokens the 8
  kTable,  ///< products of every entry with the activations of a subvector, then a load and an add for a code
};

/// How decoded weights get to where the arithmetic wants them.
enum class Fusion : uint8_t {
  kNone,             ///< the decoding lane computes
  kShared,           ///< through shared memory, read back with ldmatrix
  kRegisterShuffle,  ///< exchanged within the four lanes of a row (VQ-LLM, section VI-B)
  kZeroShuffle,      ///< the offline order of the codes makes the decoded layout the fragment of the mma
};

/// Choices of a plan that the caller fixes; 0 leaves the choice to the planner.
struct PlanPins {
  int warps_n = 0;       ///< warps of a block side by side over outputs
  int warps_k = 0;       ///< warps of a block that share outputs and split the reduction
  int row_slots = 0;     ///< rows of codes that a lane works on at once
  int split = 0;         ///< thread blocks that share outputs and split the reduction
  int token_tile = 0;    ///< tokens of a block
  int x_slots = 0;       ///< buffers of the copy pipeline
  int held = 0;          ///< entries of a stage in the registers of a warp
  int shared = 0;        ///< entries of a stage below this are in shared memory
  int replicas = 0;      ///< copies of each shared entry, a power of two
  int chunk_pieces = 0;  ///< pieces of a chunk, see WeightLayout
  std::optional<Compute> compute;
  std::optional<Fusion> fusion;
};

/// The pins that are numbers: one table for checks, options of commands and the banner of emitted files.
struct PinOption {
  const char* name;  ///< of the option: "warps-n"
  int PlanPins::*value;
  int high;  ///< allowed: 0 to high
  const char* help;
};
inline constexpr PinOption kPinOptions[] = {
    {"warps-n", &PlanPins::warps_n, 16, "Warps of a block over outputs"},
    {"warps-k", &PlanPins::warps_k, 16, "Warps of a block over the reduction"},
    {"row-slots", &PlanPins::row_slots, 8, "Rows of codes a lane holds at once"},
    {"split", &PlanPins::split, 256, "Blocks that share outputs"},
    {"token-tile", &PlanPins::token_tile, 128, "Tokens of a block"},
    {"x-slots", &PlanPins::x_slots, 3, "Buffers of the copy pipeline"},
    {"held", &PlanPins::held, 32, "Entries of a stage in registers of a warp"},
    {"shared", &PlanPins::shared, 65536, "Entries of a stage below this are in shared memory"},
    {"replicas", &PlanPins::replicas, 32, "Copies of each entry in shared memory, a power of two"},
    {"chunk-pieces", &PlanPins::chunk_pieces, 64, "Pieces of a chunk"},
};

/// What is wanted: an op on a format at a shape, for a GPU.
struct Request {
  OpKind op = OpKind::kGemv;
  Format format;
  int64_t m = 1;                   ///< tokens; not used by dequant
  int64_t n = 0;                   ///< outputs
  int64_t k = 0;                   ///< inputs, the reduction
  DType activation = DType::kF16;  ///< of x, y and of what dequant writes: fp16 or bf16
  bool bias = false;               ///< y += bias [n], of the same type
  Level level = Level::kBest;
  PlanPins pins;
  /// The order in which the codes lie already: only plans that read it are weighed.
  std::optional<WeightLayout> stored = {};
  GpuSpec gpu;
};

const char* ToString(OpKind op);
const char* ToString(Level level);
const char* ToString(Compute compute);
const char* ToString(Fusion fusion);
/// Throw Error that lists the allowed words.
OpKind ParseOp(std::string_view text);
Level ParseLevel(std::string_view text);
Compute ParseCompute(std::string_view text);
Fusion ParseFusion(std::string_view text);
/// Pins as a JSON object, names with underscores: {"warps_n": 4, "compute": "dequant_fma"}. Throws Error that
/// names `where` and the field.
PlanPins ParsePins(std::string_view text, const std::string& where);

/// Throws Error that names the field of a request that is out of range. No size reaches a kernel that could
/// overflow its 32-bit indices.
void Validate(const Request& request);

}  // namespace vqllm
