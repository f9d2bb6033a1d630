#include <algorithm>
#include <utility>

#include "vq/base/error.h"
#include "vq/checkpoint/methods.h"

// The layout of papers/format.md. Names and shapes of arrays are stated there; NativeArrays is the list of
// them.

namespace vqllm::internal {
namespace {

constexpr int64_t kMaxSize = INT32_MAX;  // rows and columns; keeps every product below in 63 bits
constexpr uint16_t kPlusOne = 0x3c00, kMinusOne = 0xbc00;

int CodeStages(const Format& format) { return format.kind == FormatKind::kInt ? 1 : format.stages(); }

bool HasZeros(const Format& format) { return format.kind == FormatKind::kInt && !format.symmetric; }

std::vector<int64_t> ScaleShape(const Format& format, int64_t rows, int64_t cols) {
  switch (format.scale) {
    case ScaleKind::kPerTensor:
      return {1};
    case ScaleKind::kPerOutput:
      return {rows};
    default:
      return {rows, ScaleGroups(format, cols)};
  }
}

/// Signs take a bit each where all are +1 or -1 (set: -1), else they are stored as the factors they are.
void PutSigns(SafetensorsWriter& writer, const std::string& name, const std::vector<Half>& signs) {
  const auto size = static_cast<int64_t>(signs.size());
  const bool all_units = std::all_of(
      signs.begin(), signs.end(), [](Half sign) { return sign.bits == kPlusOne || sign.bits == kMinusOne; });
  if (!all_units) return writer.Add(name, {size}, signs);
  std::vector<uint8_t> bits((signs.size() + 7) / 8);
  for (size_t i = 0; i < signs.size(); ++i) {
    if (signs[i].bits == kMinusOne) bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | 1 << (i % 8));
  }
  writer.Add(name, StoredType::kU8, {(size + 7) / 8}, Bytes::Own(std::move(bits)));
}

std::vector<Half> GetSigns(const StoredTensor& stored, int64_t size) {
  RequireType(stored, {StoredType::kU8, StoredType::kF16});
  if (stored.type == StoredType::kF16) {
    RequireShape(stored, {size});
    return ReadHalves(stored);
  }
  RequireShape(stored, {(size + 7) / 8});
  const std::vector<uint8_t> bits = ReadInts<uint8_t>(stored);
  std::vector<Half> signs(static_cast<size_t>(size));
  for (size_t i = 0; i < signs.size(); ++i)
    signs[i] = Half::FromBits(bits[i / 8] >> (i % 8) & 1 ? kMinusOne : kPlusOne);
  return signs;
}

/// Codes as they lie in memory. Kernels may decode whole words, so what lies behind the last code of a row
/// must be 0.
PackedCodes GetCodes(const StoredTensor& stored, int64_t rows, int64_t count, int bits) {
  const int64_t row_words = (count * bits + 31) / 32;
  RequireShape(stored, {rows, row_words});
  RequireType(stored, {StoredType::kU32, StoredType::kI32});
  PackedCodes codes(rows, count, bits);
  codes.words() = ReadWords(stored);
  const int used = static_cast<int>(count * bits % 32);
  for (int64_t row = 0; used != 0 && row < rows; ++row) {
    if (codes.words()[static_cast<size_t>((row + 1) * row_words - 1)] >> used != 0) {
      Fail("{}: row {}: bits behind the last code are set, allowed: 0", stored.where, row);
    }
  }
  return codes;
}

void PutCodes(SafetensorsWriter& writer, const std::string& name, const PackedCodes& codes) {
  writer.Add(name, StoredType::kU32, {codes.rows(), codes.row_words()},
             [&codes] { return Bytes::Own(codes.words()); });
}

PackedCodes PackZeros(const std::vector<uint8_t>& zeros, int bits) {
  PackedCodes packed(1, static_cast<int64_t>(zeros.size()), bits);
  const std::vector<uint16_t> wide(zeros.begin(), zeros.end());
  packed.PackRow(0, wide.data());
  return packed;
}

std::vector<uint8_t> GetZeros(const StoredTensor& stored, int64_t count, int bits) {
  std::vector<uint16_t> zeros(static_cast<size_t>(count));
  GetCodes(stored, 1, count, bits).UnpackRow(0, 0, count, zeros.data());
  return std::vector<uint8_t>(zeros.begin(), zeros.end());
}

std::string Staged(const char* name, int stage) { return fmt::format("{}.{}", name, stage); }

}  // namespace

std::vector<std::string> NativeArrays(const Format& format) {
  std::vector<std::string> names = {"shape"};
  for (int stage = 0; stage < CodeStages(format); ++stage) {
    names.push_back(Staged("codes", stage));
    if (format.kind == FormatKind::kTable) names.push_back(Staged("codebooks", stage));
  }
  if (format.scale != ScaleKind::kNone) names.push_back("scales");
  if (HasZeros(format)) names.push_back("zeros");
  if (format.kind == FormatKind::kLattice) names.push_back("stage_scales");
  if (format.rotation) names.insert(names.end(), {"sign_in", "sign_out"});
  if (format.permutation) names.push_back("permutation");
  if (format.input_affine) names.insert(names.end(), {"input_scale", "input_offset"});
  return names;
}

void PutNative(SafetensorsWriter& writer, const std::string& prefix, const Tensor& tensor) {
  const Format& format = tensor.format;
  const auto name = [&](const std::string& array) { return prefix + "." + array; };
  writer.Add(name("shape"), StoredType::kI64, {2},
             Bytes::Own(std::vector<int64_t>{tensor.rows, tensor.cols}));
  for (int stage = 0; stage < CodeStages(format); ++stage) {
    const size_t s = static_cast<size_t>(stage);
    PutCodes(writer, name(Staged("codes", stage)), tensor.codes[s]);
    if (format.kind != FormatKind::kTable) continue;
    const std::vector<Half>& codebook = tensor.codebooks[s];
    writer.Add(name(Staged("codebooks", stage)), StoredType::kF16,
               {CodebookCount(format, tensor.rows, tensor.cols), format.entries[s], format.subvector},
               [&codebook] { return Bytes::Own(codebook); });
  }
  if (format.scale != ScaleKind::kNone) {
    writer.Add(name("scales"), ScaleShape(format, tensor.rows, tensor.cols), tensor.scales);
  }
  if (HasZeros(format)) {
    PackedCodes zeros = PackZeros(tensor.zeros, format.bits);
    writer.Add(name("zeros"), StoredType::kU32, {1, zeros.row_words()}, Bytes::Own(std::move(zeros.words())));
  }
  if (format.kind == FormatKind::kLattice)
    writer.Add(name("stage_scales"), {format.stages()}, tensor.stage_scales);
  if (format.rotation) {
    PutSigns(writer, name("sign_in"), tensor.sign_in);
    PutSigns(writer, name("sign_out"), tensor.sign_out);
  }
  if (format.permutation) {
    writer.Add(name("permutation"), StoredType::kI32, {tensor.cols}, Bytes::Own(tensor.permutation));
  }
  if (format.input_affine) {
    writer.Add(name("input_scale"), {tensor.cols}, tensor.input_scale);
    writer.Add(name("input_offset"), {tensor.cols}, tensor.input_offset);
  }
}

Tensor GetNative(const TensorStore& store, const std::string& prefix, const QuantizationConfig& config) {
  const auto array = [&](const std::string& name) -> const StoredTensor& {
    return store.Get(prefix + "." + name);
  };
  const auto halves = [&](const std::string& name, const std::vector<int64_t>& shape) {
    RequireShape(array(name), shape);
    return ReadHalves(array(name));
  };
  Tensor tensor;
  const auto other = config.overrides.find(prefix);
  tensor.format = other != config.overrides.end() ? other->second : config.format;
  const Format& format = tensor.format;

  RequireShape(array("shape"), {2});
  const std::vector<int64_t> shape = ReadInts<int64_t>(array("shape"));
  if (std::min(shape[0], shape[1]) < 1 || std::max(shape[0], shape[1]) > kMaxSize) {
    Fail("{}: found {}, allowed: sizes from 1 to {}", array("shape").where, ShapeText(shape), kMaxSize);
  }
  tensor.rows = shape[0];
  tensor.cols = shape[1];
  for (int stage = 0; stage < CodeStages(format); ++stage) {
    tensor.codes.push_back(GetCodes(array(Staged("codes", stage)), CodeRows(format, tensor.rows),
                                    CodesPerRow(format, tensor.cols), format.CodeBits(stage)));
    if (format.kind != FormatKind::kTable) continue;
    tensor.codebooks.push_back(
        halves(Staged("codebooks", stage), {CodebookCount(format, tensor.rows, tensor.cols),
                                            format.entries[static_cast<size_t>(stage)], format.subvector}));
  }
  if (format.scale != ScaleKind::kNone)
    tensor.scales = halves("scales", ScaleShape(format, tensor.rows, tensor.cols));
  if (HasZeros(format)) {
    tensor.zeros = GetZeros(array("zeros"), static_cast<int64_t>(tensor.scales.size()), format.bits);
  }
  if (format.kind == FormatKind::kLattice) {
    RequireShape(array("stage_scales"), {format.stages()});
    tensor.stage_scales = ReadFloats(array("stage_scales"));
  }
  if (format.rotation) {
    tensor.sign_in = GetSigns(array("sign_in"), tensor.cols);
    tensor.sign_out = GetSigns(array("sign_out"), tensor.rows);
  }
  if (format.permutation) {
    RequireShape(array("permutation"), {tensor.cols});
    tensor.permutation = ReadInts<int32_t>(array("permutation"));
  }
  if (format.input_affine) {
    tensor.input_scale = halves("input_scale", {tensor.cols});
    tensor.input_offset = halves("input_offset", {tensor.cols});
  }
  ValidateTensor(tensor, fmt::format("{}: {}", store.where(), Quoted(prefix)));
  return tensor;
}

}  // namespace vqllm::internal
