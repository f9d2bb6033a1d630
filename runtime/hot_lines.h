#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ptx/interpreter.h"

namespace vqllm {

/// What one line of a CUDA file cost over one or several launches.
struct LineCost {
  int line = 0;      ///< from 1; 0 for what the compiler gives no line of this file
  std::string text;  ///< of the line, without indentation
  uint64_t warp_instructions = 0;
  uint64_t thread_instructions = 0;
  uint64_t sectors = 0;     ///< of global memory, by request
  uint64_t wavefronts = 0;  ///< of shared memory, ldmatrix included
};

/// Adds the counts per PTX line up by the line of `source`, whose name `file` is the last part of the path in
/// the PTX. In the order of lines.
std::vector<LineCost> SumByLine(const std::vector<ptx::LineCount>& counts, std::string_view source,
                                std::string_view file);

/// A table of the `count` hottest lines: those with the largest share of any of the three costs, in the order
/// of that share, each beside its text.
std::string HotLines(const std::vector<LineCost>& lines, size_t count);

}  // namespace vqllm
