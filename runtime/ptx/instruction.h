#pragma once

#include <cstdint>

#include "runtime/ptx/opcode.h"

namespace vqllm::ptx {

/// Where an operand lies: a byte offset into the registers of the warp, or into the constants of the launch
/// where bit 0 is set (offsets are multiples of four). See Warp::Read.
using Place = uint32_t;
inline constexpr Place kNowhere = 0;  ///< the first 256 bytes of the registers take what nobody reads

/// A decoded instruction. Its operands are those of the form, destinations and sources in order; a vector
/// stands in `list` (destinations of a load, sources of a store, all operands of mma).
struct Instruction {
  Handler handler = nullptr;
  const Place* list = nullptr;
  Place dest[2] = {};
  Place source[4] = {};
  Place guard = 0;         ///< predicate, with guard_xor; 0 is always true
  uint32_t guard_xor = 0;  ///< all ones for @!p
  int64_t offset = 0;      ///< of the address
  int64_t offset2 = 0;     ///< of the second address (cp.async)
  uint32_t immediate = 0;
  Flow flow = Flow::kNone;
  InstructionClass cls = InstructionClass::kOther;
  Space space = Space::kGeneric;
  uint8_t element_bytes = 4;  ///< of memory
  uint8_t elements = 1;       ///< of the vector
  uint8_t dest_bytes = 4;     ///< of the destination registers
  uint8_t source_bytes = 4;   ///< of the registers of source 0 (cvt) or of the data (st)
  uint8_t negate = 0;         ///< bit i: source i is a predicate with "!"
  bool wide_address = true;   ///< the address register has 64 bits
  bool wide_address2 = true;
  bool has_address = false;  ///< source[0] is a register or a constant with the address
  bool is_signed = false;    ///< loads extend the sign
  uint32_t target = 0;       ///< branch, call
  uint32_t reconverge = 0;
  uint32_t index = 0;  ///< of the branch list or of the callee
};

}  // namespace vqllm::ptx
