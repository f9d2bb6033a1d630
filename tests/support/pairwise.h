#pragma once

#include <vector>

namespace vqllm::test {

/// Rows of choices [rows][factors], the choice of factor f below sizes[f], such that every pair of choices of
/// every two factors stands together in some row. Greedy, the same at every run; hardly longer than the
/// product of the two largest sizes.
std::vector<std::vector<int>> PairwiseRows(const std::vector<int>& sizes);

}  // namespace vqllm::test
