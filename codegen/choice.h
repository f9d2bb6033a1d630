#pragma once

#include <compare>

#include "codegen/decode/decoder.h"
#include "codegen/plan.h"

namespace vqllm::internal {

/// The free choices of one candidate; all else of a plan follows from them and the request.
struct Choice {
  Compute compute = Compute::kFma;
  Fusion fusion = Fusion::kNone;
  int warps_n = 4;
  int warps_k = 1;
  int row_slots = 1;
  int chunk_pieces = 1;
  int token_tile = 1;
  int split = 1;
  int x_slots = 1;
  int held = 0;
  double shared_share = 0;  ///< of the entries; < 0: as the slack allows
  bool replicate = false;

  auto operator<=>(const Choice&) const = default;
};

/// Neighbouring units that a lane takes together: whole vectors of activations, and for group scales as many
/// as one scale covers, up to 32 columns.
int PieceUnits(const Format& format, const UnitShape& unit);

/// Words of codes that a lane may hold of a row, and columns of its chunk.
inline constexpr int kMaxChunkWords = 16;
inline constexpr int kMaxChunkCols = 256;

/// The plan of a choice. Throws Error where the GPU cannot run it.
Plan BuildPlan(const Request& request, const Choice& choice);

}  // namespace vqllm::internal
