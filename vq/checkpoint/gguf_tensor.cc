#include "vq/checkpoint/gguf_tensor.h"

#include <cstring>
#include <utility>

#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/base/parallel.h"
#include "vq/checkpoint/stored_tensor.h"

namespace vqllm {
namespace {

constexpr int kGroup = 32;  // columns of a Q8_0 or Q4_0 block

void RequireReadable(const GgufTensor& tensor) {
  if (tensor.type != nullptr && tensor.type->dequantize != nullptr) return;
  Fail("{}: found type {}, allowed: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K", tensor.where,
       tensor.type != nullptr ? std::string(tensor.type->name) : fmt::format("number {}", tensor.type_id));
}

/// The rows in the order asked for: the file's own bytes, or a copy.
Bytes OrderRows(const Bytes& bytes, int64_t rows, std::span<const int64_t> order) {
  if (order.empty()) return bytes;
  VQLLM_CHECK(static_cast<int64_t>(order.size()) == rows, "{} of {} rows", order.size(), rows);
  const size_t row_bytes = bytes.size() / static_cast<size_t>(rows);
  std::vector<uint8_t> ordered(bytes.size());
  for (size_t row = 0; row < order.size(); ++row) {
    VQLLM_CHECK(order[row] >= 0 && order[row] < rows, "row {}", order[row]);
    std::memcpy(ordered.data() + row * row_bytes, bytes.data() + static_cast<size_t>(order[row]) * row_bytes,
                row_bytes);
  }
  return Bytes::Own(std::move(ordered));
}

std::vector<float> Dequantize(const GgmlType& type, const Bytes& bytes, int64_t elements) {
  std::vector<float> values(static_cast<size_t>(elements));
  const int64_t blocks = elements / type.elements;
  ParallelFor(blocks, 1 << 12, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      type.dequantize(bytes.data() + block * type.bytes, values.data() + block * type.elements);
    }
  });
  return values;
}

/// Q8_0 and Q4_0: scale * (code - zero) with the zero in the middle of the range is what both store.
Tensor ReadIntegers(const Bytes& bytes, int64_t rows, int64_t cols, int bits, int block_bytes) {
  Tensor tensor;
  tensor.format.name = fmt::format("int{}-g{}-sym", bits, kGroup);
  tensor.format.kind = FormatKind::kInt;
  tensor.format.bits = bits;
  tensor.format.symmetric = true;
  tensor.format.scale = ScaleKind::kGroup;
  tensor.format.group = kGroup;
  tensor.rows = rows;
  tensor.cols = cols;
  tensor.codes.emplace_back(rows, cols, bits);
  const int64_t groups = cols / kGroup;
  tensor.scales.resize(static_cast<size_t>(rows * groups));
  ParallelFor(rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<uint16_t> codes(static_cast<size_t>(cols));
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t group = 0; group < groups; ++group) {
        const uint8_t* block = bytes.data() + (row * groups + group) * block_bytes;
        uint16_t* out = codes.data() + group * kGroup;
        uint16_t scale;
        std::memcpy(&scale, block, sizeof(scale));
        tensor.scales[static_cast<size_t>(row * groups + group)] = Half::FromBits(scale);
        for (int i = 0; i < kGroup; ++i) {
          if (bits == 8) {
            out[i] = static_cast<uint16_t>(static_cast<int8_t>(block[2 + i]) + 128);
          } else {
            out[i] = i < 16 ? block[2 + i] & 15 : block[2 + i - 16] >> 4;
          }
        }
      }
      tensor.codes[0].PackRow(row, codes.data());
    }
  });
  return tensor;
}

}  // namespace

std::vector<float> ReadGgufFloats(const GgufTensor& tensor) {
  RequireReadable(tensor);
  return Dequantize(*tensor.type, tensor.bytes, ElementCount(tensor.shape));
}

Tensor ReadGgufMatrix(const GgufTensor& tensor, std::span<const int64_t> row_order) {
  RequireReadable(tensor);
  if (tensor.shape.size() != 2 || tensor.shape[0] < 1 || tensor.shape[1] < 1) {
    Fail("{}: found shape {}, allowed: two dimensions, at least 1 x 1", tensor.where,
         ShapeText(tensor.shape));
  }
  const int64_t rows = tensor.shape[0];
  const int64_t cols = tensor.shape[1];
  const Bytes bytes = OrderRows(tensor.bytes, rows, row_order);
  switch (tensor.type_id) {
    case kGgmlF32:
      return DenseTensor(DType::kF32, rows, cols, bytes);
    case kGgmlF16:
      return DenseTensor(DType::kF16, rows, cols, bytes);
    case kGgmlBF16:
      return DenseTensor(DType::kBF16, rows, cols, bytes);
    case kGgmlQ8_0:
      return ReadIntegers(bytes, rows, cols, 8, tensor.type->bytes);
    case kGgmlQ4_0:
      return ReadIntegers(bytes, rows, cols, 4, tensor.type->bytes);
    default:
      return DenseTensor(DType::kF32, rows, cols, Bytes::Own(Dequantize(*tensor.type, bytes, rows * cols)));
  }
}

}  // namespace vqllm
