#pragma once

#include "runtime/ptx/opcode.h"

/// Who executes what: each function gives the handler of an opcode of its family, by its modifiers and types.
/// One function per file exec_*.cc, or a few. Null only for what the table of forms does not admit.
namespace vqllm::ptx {

Handler SelectInteger(const Opcode& opcode);        ///< add sub mul mad sad div rem abs neg min max
Handler SelectCarry(const Opcode& opcode);          ///< add.cc addc sub.cc subc mad.cc madc
Handler SelectPackedInteger(const Opcode& opcode);  ///< u16x2, s16x2, dp4a, dp2a, mul24, mad24
Handler SelectLogic(const Opcode& opcode);          ///< and or xor not cnot lop3 shl shr shf prmt
Handler SelectBits(const Opcode& opcode);           ///< popc clz bfind fns brev bfe bfi bmsk szext
Handler SelectFloat(const Opcode& opcode);  ///< f32, f64: add sub mul fma div min max abs neg sqrt ...
Handler SelectFloatExtreme3(const Opcode& opcode);  ///< min max of three f32
Handler SelectDirected(const Opcode& opcode);       ///< the same with .rz .rm .rp
Handler SelectMath(const Opcode& opcode);           ///< ex2 lg2 sin cos tanh rcp rsqrt sqrt .approx
Handler SelectHalf(const Opcode& opcode);           ///< f16 f16x2 bf16 bf16x2 arithmetic
Handler SelectHalfMath(const Opcode& opcode);       ///< ex2, tanh of halves
Handler SelectHalfCompare(const Opcode& opcode);    ///< set, setp of halves
Handler SelectCompare(const Opcode& opcode);        ///< set setp selp slct testp
Handler SelectPredicate(const Opcode& opcode);      ///< and or xor not mov of predicates
Handler SelectMove(const Opcode& opcode);           ///< mov of scalars, cvta, isspacep
Handler SelectPack(const Opcode& opcode);           ///< mov d, {a, b}
Handler SelectUnpack(const Opcode& opcode);         ///< mov {a, b}, d
Handler SelectClock(const Opcode& opcode);          ///< mov from %clock and its like
Handler SelectConvert(const Opcode& opcode);        ///< cvt between scalars
Handler SelectConvertPacked(const Opcode& opcode);  ///< cvt to and from pairs, fp8, cvt.pack
Handler SelectShuffle(const Opcode& opcode);
Handler SelectVote(const Opcode& opcode);  ///< vote match redux activemask elect bar.warp
Handler SelectLoad(const Opcode& opcode);
Handler SelectStore(const Opcode& opcode);
Handler SelectAtomic(const Opcode& opcode);      ///< atom red
Handler SelectMatrixMove(const Opcode& opcode);  ///< ldmatrix stmatrix movmatrix
Handler SelectMma(const Opcode& opcode);
Handler SelectWmma(const Opcode& opcode);
Handler SelectAsyncCopy(const Opcode& opcode);  ///< cp.async
Handler SelectFence(const Opcode& opcode);      ///< fence membar
Handler SelectNothing(const Opcode& opcode);    ///< prefetch, nanosleep, ...: no effect on values

/// Instruction::immediate of set and setp: how the result is combined with a predicate.
uint32_t CompareImmediate(const Opcode& opcode);

}  // namespace vqllm::ptx
