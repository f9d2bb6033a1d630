#include "vq/base/error.h"
#include "vq/base/parallel.h"
#include "vq/checkpoint/methods.h"

// qweight I32 [cols, rows / 8] and qzeros I32 [groups, rows / 8]: nibble i of word c belongs to output 8c +
// kOutput[i]. scales F16 [groups, rows].

namespace vqllm::internal {
namespace {

constexpr int kOutput[8] = {0, 2, 4, 6, 1, 3, 5, 7};

}  // namespace

Tensor GetAwq(const TensorStore& store, const std::string& prefix, const QuantizationConfig& config) {
  const StoredTensor& qweight = store.Get(prefix + ".qweight");
  if (qweight.shape.size() != 2 || qweight.elements() == 0) {
    Fail("{}: found shape {}, allowed: [inputs, outputs / 8]", qweight.where, ShapeText(qweight.shape));
  }
  Tensor tensor;
  tensor.format = config.format;
  tensor.cols = qweight.shape[0];
  const int64_t words = qweight.shape[1];
  tensor.rows = 8 * words;
  const int64_t groups = ScaleGroups(tensor.format, tensor.cols);
  const StoredTensor& qzeros = store.Get(prefix + ".qzeros");
  const StoredTensor& scales = store.Get(prefix + ".scales");
  RequireShape(qzeros, {groups, words});
  RequireShape(scales, {groups, tensor.rows});

  const std::vector<uint32_t> weights = ReadWords(qweight);
  PackedCodes& codes = tensor.codes.emplace_back(tensor.rows, tensor.cols, 4);
  ParallelFor(words, 4, [&](int64_t begin, int64_t end) {
    std::vector<uint16_t> row(static_cast<size_t>(tensor.cols));
    for (int64_t word = begin; word < end; ++word) {
      for (int nibble = 0; nibble < 8; ++nibble) {
        for (int64_t j = 0; j < tensor.cols; ++j) {
          row[static_cast<size_t>(j)] = weights[static_cast<size_t>(j * words + word)] >> (4 * nibble) & 15;
        }
        codes.PackRow(8 * word + kOutput[nibble], row.data());
      }
    }
  });

  const std::vector<uint32_t> zeros = ReadWords(qzeros);
  const std::vector<Half> by_group = ReadHalves(scales);
  tensor.scales.resize(by_group.size());
  tensor.zeros.resize(by_group.size());
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t r = 0; r < tensor.rows; ++r) {
      tensor.scales[static_cast<size_t>(r * groups + g)] = by_group[static_cast<size_t>(g * tensor.rows + r)];
    }
    for (int64_t word = 0; word < words; ++word) {
      for (int nibble = 0; nibble < 8; ++nibble) {
        const int64_t r = 8 * word + kOutput[nibble];
        tensor.zeros[static_cast<size_t>(r * groups + g)] =
            static_cast<uint8_t>(zeros[static_cast<size_t>(g * words + word)] >> (4 * nibble) & 15);
      }
    }
  }
  ValidateTensor(tensor, prefix);
  return tensor;
}

}  // namespace vqllm::internal
