#pragma once

#include <set>
#include <string>

#include "codegen/plan.h"

namespace vqllm {

/// What the planner and the emitters must know of a kind of codes.
struct UnitShape {
  int rows = 1;  ///< weights of a unit down a column of W
  int cols = 8;  ///< and along a row
  int bits = 0;
  bool bf16 = false;    ///< pairs are bf16, not fp16
  bool offset = false;  ///< DecodeUnit subtracts a zero point that comes with the scale
  int Values() const { return rows * cols; }
  int Pairs() const { return (rows * cols + 1) / 2; }
};
UnitShape UnitOf(const Format& format);

/// True where units of the format read codebooks: parameters `codebooks`, struct Codebook, LoadCodebook.
bool HasCodebook(const Format& format);
/// True where the codebook changes from unit to unit within what a block has staged: DecodeUnit then takes
/// the index of the codebook, and all entries stay in global memory.
bool IndexesCodebooks(const Plan& plan);

/// The parts of an emitted file that depend on how codes become values.
struct DecoderText {
  std::set<std::string> blocks;  ///< device blocks used
  std::string constants;         ///< lines of constants
  std::string functions;         ///< struct Codebook and LoadCodebook where there are codebooks; DecodeUnit
};

/// Emits the decoder of plan.format. The emitted interface:
///   LoadCodebook(codebooks, factors, shared, index) -> Codebook   copies entries; a barrier must follow
///   DecodeUnit(words, unit, [book], [index], [offset], pairs)     pairs: two values a register, in order
DecoderText EmitDecoder(const Plan& plan);
/// The arguments of a call of DecodeUnit between `unit` and `pairs`, such as "book, "; `index` and `offset`
/// are expressions.
std::string DecodeArguments(const Plan& plan, const std::string& index, const std::string& offset);
/// True where a code of some unit of a chunk lies across two words.
bool CodesCrossWords(const Plan& plan);
/// The codebook of the block, or of `segment`, an expression; nothing where there is one for all.
std::string SegmentCodebook(const Plan& plan);
/// Call of LoadCodebook, of `segment` where a segment has codebooks of its own; nothing without codebooks.
std::string LoadCodebookCall(const Plan& plan);
/// The index of the codebook of weight (row, col), expressions both.
std::string CodebookIndex(const Plan& plan, const std::string& row, const std::string& col);

namespace internal {
DecoderText EmitLookup(const Plan& plan);
DecoderText EmitLattice(const Plan& plan);
DecoderText EmitScalar(const Plan& plan);
}  // namespace internal
}  // namespace vqllm
