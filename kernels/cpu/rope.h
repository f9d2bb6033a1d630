#pragma once

#include <cstdint>

#include "kernels/cpu/kv_layer.h"

namespace vqllm::cpu {

/// Turns the first rope.dim channels of a head [head_dim] to a position below rope.positions().
void Rotate(const RopeTable& rope, int64_t position, float* head);

}  // namespace vqllm::cpu
