#pragma once

#include "runtime/ptx/warp.h"

namespace vqllm::ptx {

/// Reports a hazard and gives false where a lane is missing.
bool RequireWholeWarp(Warp& warp);

}  // namespace vqllm::ptx
