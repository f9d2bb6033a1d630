#include <bit>
#include <utility>

#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/base/parallel.h"
#include "vq/checkpoint/methods.h"

// codes I8 or I16 [rows, cols / v, stages]: codes from half the range on are stored less the whole range, as
// signed integers wrap. codebooks F16 [stages, entries, 1, v]; scales F16 [rows, 1, 1, 1].

namespace vqllm::internal {
namespace {

template <typename T>
Bytes WrapCodes(const Tensor& tensor) {
  const size_t stages = tensor.codes.size();
  const size_t count = static_cast<size_t>(tensor.codes[0].count());
  std::vector<T> wrapped(static_cast<size_t>(tensor.rows) * count * stages);
  const int bits = tensor.codes[0].bits();
  ParallelFor(tensor.rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<uint16_t> row(count);
    for (int64_t r = begin; r < end; ++r) {
      for (size_t stage = 0; stage < stages; ++stage) {
        tensor.codes[stage].UnpackRow(r, 0, static_cast<int64_t>(count), row.data());
        for (size_t j = 0; j < count; ++j) {
          const int code = row[j];
          const int value = code >= 1 << (bits - 1) ? code - (1 << bits) : code;
          wrapped[(static_cast<size_t>(r) * count + j) * stages + stage] = static_cast<T>(value);
        }
      }
    }
  });
  return Bytes::Own(std::move(wrapped));
}

/// Codes of all stages. Those that are stored unsigned in a wide enough type are taken, too.
template <typename T>
void UnwrapCodes(const StoredTensor& stored, Tensor& tensor) {
  const size_t stages = tensor.codes.size();
  const size_t count = static_cast<size_t>(tensor.codes[0].count());
  const int range = 1 << tensor.codes[0].bits();
  ParallelFor(tensor.rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<uint16_t> row(count);
    for (int64_t r = begin; r < end; ++r) {
      for (size_t stage = 0; stage < stages; ++stage) {
        for (size_t j = 0; j < count; ++j) {
          const int value = stored.bytes.Load<T>((static_cast<size_t>(r) * count + j) * stages + stage);
          if (value < -range / 2 || value >= range) {
            Fail("{}: code [{}, {}, {}]: found {}, allowed: {} to {}", stored.where, r, j, stage, value,
                 -range / 2, range - 1);
          }
          row[j] = static_cast<uint16_t>(value < 0 ? value + range : value);
        }
        tensor.codes[stage].PackRow(r, row.data());
      }
    }
  });
}

}  // namespace

bool AqlmHolds(const Tensor& tensor) {
  const Format& format = tensor.format;
  if (format.kind != FormatKind::kTable || format.axis != Axis::kIn ||
      format.scope.kind != ScopeKind::kTensor || format.scale != ScaleKind::kPerOutput || format.rotation ||
      format.permutation || format.input_affine) {
    return false;
  }
  for (const int entries : format.entries) {
    if (entries != format.entries[0] || !std::has_single_bit(static_cast<unsigned>(entries))) return false;
  }
  return tensor.cols % format.subvector == 0;
}

void PutAqlm(SafetensorsWriter& writer, const std::string& prefix, const Tensor& tensor) {
  VQLLM_CHECK(AqlmHolds(tensor), "{}", prefix);
  const Format& format = tensor.format;
  const int64_t stages = format.stages();
  const bool bytes = format.CodeBits(0) <= 8;
  writer.Add(prefix + ".codes", bytes ? StoredType::kI8 : StoredType::kI16,
             {tensor.rows, tensor.cols / format.subvector, stages},
             [&tensor, bytes] { return bytes ? WrapCodes<int8_t>(tensor) : WrapCodes<int16_t>(tensor); });
  writer.Add(prefix + ".codebooks", StoredType::kF16, {stages, format.entries[0], 1, format.subvector},
             [&tensor] {
               std::vector<Half> codebooks;
               for (const std::vector<Half>& codebook : tensor.codebooks) {
                 codebooks.insert(codebooks.end(), codebook.begin(), codebook.end());
               }
               return Bytes::Own(std::move(codebooks));
             });
  writer.Add(prefix + ".scales", {tensor.rows, 1, 1, 1}, tensor.scales);
}

Tensor GetAqlm(const TensorStore& store, const std::string& prefix, const QuantizationConfig& config) {
  const StoredTensor& codes = store.Get(prefix + ".codes");
  const StoredTensor& codebooks = store.Get(prefix + ".codebooks");
  const StoredTensor& scales = store.Get(prefix + ".scales");
  RequireType(codes, {StoredType::kI8, StoredType::kI16});
  Tensor tensor;
  tensor.format = config.format;
  const Format& format = tensor.format;
  const int64_t stages = format.stages();
  if (codes.shape.size() != 3 || codes.elements() == 0 || codes.shape[2] != stages) {
    Fail("{}: found shape {}, allowed: [outputs, inputs / {}, {}]", codes.where, ShapeText(codes.shape),
         format.subvector, stages);
  }
  if (codes.type == StoredType::kI8 && format.CodeBits(0) > 8) {
    Fail("{}: found type I8, allowed: I16, as nbits_per_codebook is {}", codes.where, format.CodeBits(0));
  }
  tensor.rows = codes.shape[0];
  tensor.cols = codes.shape[1] * format.subvector;
  RequireShape(codebooks, {stages, format.entries[0], 1, format.subvector});
  RequireShape(scales, {tensor.rows, 1, 1, 1});

  for (int64_t stage = 0; stage < stages; ++stage) {
    tensor.codes.emplace_back(tensor.rows, codes.shape[1], format.CodeBits(0));
  }
  codes.type == StoredType::kI8 ? UnwrapCodes<int8_t>(codes, tensor) : UnwrapCodes<int16_t>(codes, tensor);
  const std::vector<Half> entries = ReadHalves(codebooks);
  const size_t size = entries.size() / static_cast<size_t>(stages);
  for (size_t stage = 0; stage < static_cast<size_t>(stages); ++stage) {
    const auto begin = entries.begin() + static_cast<std::ptrdiff_t>(stage * size);
    tensor.codebooks.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(size));
  }
  tensor.scales = ReadHalves(scales);
  ValidateTensor(tensor, prefix);
  return tensor;
}

}  // namespace vqllm::internal
