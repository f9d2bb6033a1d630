#pragma once

#include <set>
#include <string>
#include <string_view>

namespace vqllm {

/// The text of a device block of kernels/device ("bits", "mma"), embedded when the library was built. Aborts
/// where there is none.
std::string_view DeviceBlock(std::string_view name);

/// The named blocks each once and before what uses it, without their #pragma once.
std::string BundleBlocks(const std::set<std::string>& names);

}  // namespace vqllm
