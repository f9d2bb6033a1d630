#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "codegen/plan.h"
#include "codegen/traffic.h"

/// What the parts that kernels share ask of memory. Each follows the text that its namesake emits: whoever
/// changes one changes the other, and a test compares both.
namespace vqllm::internal {

/// Groups of chunks of a row tile that are alike: as many lanes, and padding in the last one only.
struct GroupRun {
  Loop segments;            ///< stride in chunks of a row
  Loop groups;              ///< of a segment; stride in chunks
  int64_t first_chunk = 0;  ///< of a row
  int64_t first_group = 0;  ///< of its segment
  int64_t first_col = 0;
  int lanes = 0;      ///< that have a chunk
  bool last = false;  ///< the one group that holds the end of the row

  int64_t Groups() const { return segments.count * groups.count; }
};
std::vector<GroupRun> GroupRunsOf(const WeightLayout& layout);

/// Where a step of the reduction begins; `step` == plan.steps: behind the last.
struct StepStart {
  int64_t chunk = 0;  ///< of a row
  int64_t col = 0;
  int segment = 0;
};
StepStart StartOf(const Plan& plan, int step);

/// Warps along the outputs of all blocks, those without a row tile included.
int64_t WarpRows(const Plan& plan);

/// Loads of all codes, once for each token tile.
void CodeTraffic(const Plan& plan, Traffic& t);

/// Activations of all steps into shared memory: `async` by cp.async, else through registers.
void StageTraffic(const Plan& plan, bool async, Traffic& t);

/// First touch of outputs: y, partial sums or w; rows of bias and factors read with them.
void OutputTouch(const Plan& plan, Traffic& t);

/// ScaleAt by the lanes of a warp, for every row slot and row of a unit. Rows beyond the last read the last
/// one, columns too.
struct ScaleRead {
  std::array<int64_t, 32> cols{};  ///< the column of each lane, negative where it does not read
  Loop groups;                     ///< repetitions, strides in columns
  Loop segments;
  int64_t first_tile = 0;  ///< row tiles [first_tile, end_tile) of the warps
  int64_t end_tile = 0;
};
void ScaleTraffic(const Plan& plan, const ScaleRead& read, int64_t times, Traffic& t);
/// First touch of group scales by blocks and launch.
void ScaleTouch(const Plan& plan, Traffic& t);

/// How an entry is read: loads of `vector_bytes`, of which `used_vectors` hold a value of the subvector.
struct EntryShape {
  int bytes = 4;
  int vector_bytes = 4;
  int used_vectors = 1;
  int Vectors() const { return bytes / vector_bytes; }
};
EntryShape EntryShapeOf(const Format& format);
/// The tier of a stage; both stages of a lattice share one table.
const StageTier& TierOf(const Plan& plan, int stage);

/// Calls of DecodeUnit. `idle`: warps without a row tile decode zeros, too.
void DecodeTraffic(const Plan& plan, bool idle, Traffic& t);

/// LoadCodebook: once a block, at every step, or where a segment begins.
enum class CodebookCalls : uint8_t { kBlock, kStep, kSegment };
void CodebookTraffic(const Plan& plan, CodebookCalls calls, Traffic& t);

/// The lanes with the sums of a row write them, token after token.
void RowSumTraffic(const Plan& plan, Traffic& t);

/// The second kernel.
void SumPartialsTraffic(const Plan& plan, Traffic& t);

}  // namespace vqllm::internal
