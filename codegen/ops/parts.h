#pragma once

#include <set>
#include <string>

#include "codegen/op.h"
#include "vq/tensor.h"

namespace vqllm::internal {

// Heads of kernels: head.cc.

std::string ElementType(DType dtype);  ///< "__half" or "__nv_bfloat16"
/// Conversions between fp32 and the activation type: "__float2half_rn", "__half2float" and their like.
std::string RoundCall(DType dtype);
std::string WidenCall(DType dtype);
/// The device function that turns a register of two values into a float2: "HalfFloats", "Bfloat16Floats".
std::string PairFloats(bool bf16);
/// `extern "C" __global__ ... name(parameters) {` of a launch of the plan; `bounds`: of __launch_bounds__.
std::string KernelHead(const Plan& plan, size_t launch, const std::string& bounds);

// Codes, in the order of WeightLayout: codes.cc.

std::string WeightType(const WeightLayout& layout);  ///< "uint4", "uint2", "unsigned": one load
std::string LayoutConstants(const Plan& plan);
std::string StepConstants(const Plan& plan);
/// Statements that load `words[kRowSlots][kChunkWords]` from `at`, rows `stride` vectors apart; where `guard`
/// is not empty and false, zeros.
std::string LoadWords(const Plan& plan, const std::string& at, const std::string& stride,
                      const std::string& guard);
/// Statements that define `first_chunk` (of its segment), where wanted `first_column`, and with segments
/// `segment` of a step.
std::string BeginStep(const Plan& plan, bool column);
/// Statements that define `first_step` and `last_step` of a block, where several share the steps.
std::string BlockSteps(const Plan& plan);
/// How many groups a step has, an expression; of the last step of a segment there may be fewer.
std::string GroupsOfStep(const Plan& plan);
/// Statements that define `lanes` and `active` of group `g` as far as groups or tiles may be incomplete, and
/// the names of the two, the second empty where every lane is active.
struct GroupLanes {
  std::string define;
  std::string lanes;
  std::string active;
};
GroupLanes LanesOfGroup(const Plan& plan);
/// LoadWords of group `g`.
std::string LoadGroup(const Plan& plan, const GroupLanes& group);
/// Statements that define `column_lane` and, where a tile has several, `row_lane`.
std::string LaneConstants(const WeightLayout& layout);
/// The row of units that slot `r` of a lane holds.
std::string RowOfSlot(const WeightLayout& layout);
/// Index of unit `u` of fragment `f` of piece `p` in a chunk, and what to add to the first column of the
/// piece.
std::string UnitIndex(const WeightLayout& layout);
std::string UnitColumn(const WeightLayout& layout);
/// The body, in an unrolled loop where `times` is more than one.
std::string Unrolled(const char* variable, const std::string& count, int times, const std::string& body);

// Scales: scales.cc.

bool ScalesPerGroup(const Plan& plan);
bool ScalesPerOutput(const Plan& plan);
bool HasFactor(const Plan& plan);
/// True where one scale covers a piece; else each unit has its own.
bool ScalePerPiece(const Plan& plan);
std::string ScaleFunction(const Plan& plan);  ///< ScaleAt(scales, row, col), or nothing
/// Call of ScaleAt.
std::string ScaleCall(const Plan& plan, const std::string& row, const std::string& col);

// Activations in shared memory: activations.cc.

/// StageActivations(x, to_shared, first_column, first_token): copies those of one step.
std::string StageFunction(const Plan& plan, bool async);
std::set<std::string> StageBlocks(const Plan& plan, bool async);
/// Reads the fragment's activations at `from` into `into`[kFragmentColumns / 2].
std::string ReadFragment(const Plan& plan, const std::string& into, const std::string& from);
std::string ActivationConstants(const Plan& plan);

// Decoding and multiplying: fma_products.cc, mma_fragments.cc.

/// Decodes `words` of group `g`, piece after piece, and adds the products with the staged activations to
/// `acc`.
std::string FmaProducts(const Plan& plan);
std::string MmaProducts(const Plan& plan);
/// Functions and device blocks that MmaProducts calls.
std::string MmaFunctions(const Plan& plan);
std::set<std::string> MmaBlocks(const Plan& plan);
/// The row of the warp's tile that is row `row` of a lane, an expression, in [0, kRowSlots * kUnitRows).
std::string TileRow(const Plan& plan, const std::string& row);

// Sums on their way out: sums.cc.

/// Scales `sum` of output `row` and token `token`, and stores it to y, or to partial where blocks share
/// outputs. `guard`: more conditions of the store; rows and tokens behind the last one are never stored.
std::string StoreSum(const Plan& plan, const std::string& guard);
std::string SumPartialsKernel(const Plan& plan);  ///< nothing where each output has one block

}  // namespace vqllm::internal
