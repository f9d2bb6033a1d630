#pragma once

#include <array>
#include <filesystem>

#include "runtime/model/model.h"

// The two kinds of checkpoint behind LoadModel.
namespace vqllm {

Model LoadHuggingFace(const std::filesystem::path& folder);
Model LoadGguf(const std::filesystem::path& file);

/// {outputs, inputs} of a matrix of a layer.
std::array<int64_t, 2> LinearShape(const ModelConfig& config, const LinearSlot& slot);

}  // namespace vqllm
