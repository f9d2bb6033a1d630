#pragma once

#include <string>
#include <vector>

namespace vqllm::test {

/// Formats that generated kernels are tested on: each named one once (those that only differ by name are left
/// out), and some that nobody has named.
const std::vector<std::string>& RegistryFormats();

/// True where tests run whole matrices instead of samples: VQLLM_FULL_MATRIX is set, as `ctest -C full -L
/// full` does.
bool FullMatrix();

}  // namespace vqllm::test
