#include <algorithm>
#include <numeric>
#include <utility>

#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/base/parallel.h"
#include "vq/checkpoint/methods.h"

// qweight I32 [cols * bits / 32, rows]: column j of it is the packed row j of W. qzeros I32 [groups, rows *
// bits / 32], scales F16 [groups, rows], g_idx I32 [cols]: the group of each column.

namespace vqllm::internal {
namespace {

int64_t GroupWidth(const Format& format, int64_t cols) {
  return format.scale == ScaleKind::kGroup ? format.group : cols;
}

/// The group of each column of W.
std::vector<int32_t> GroupOfColumns(const Tensor& tensor) {
  const int64_t width = GroupWidth(tensor.format, tensor.cols);
  std::vector<int32_t> group_of(static_cast<size_t>(tensor.cols));
  for (int64_t j = 0; j < tensor.cols; ++j) {
    const int64_t column = tensor.format.permutation ? tensor.permutation[static_cast<size_t>(j)] : j;
    group_of[static_cast<size_t>(column)] = static_cast<int32_t>(j / width);
  }
  return group_of;
}

/// The columns of W in the order in which they are stored: by group, and by column inside a group.
std::vector<int32_t> ColumnsByGroup(const std::vector<int32_t>& group_of) {
  std::vector<int32_t> columns(group_of.size());
  std::iota(columns.begin(), columns.end(), 0);
  std::stable_sort(columns.begin(), columns.end(), [&](int32_t a, int32_t b) {
    return group_of[static_cast<size_t>(a)] < group_of[static_cast<size_t>(b)];
  });
  return columns;
}

/// Codes with their columns reordered: to[j] = from[source[j]].
PackedCodes ReorderColumns(const PackedCodes& from, const std::vector<int32_t>& source) {
  PackedCodes to(from.rows(), from.count(), from.bits());
  ParallelFor(from.rows(), 16, [&](int64_t begin, int64_t end) {
    std::vector<uint16_t> old_codes(source.size()), codes(source.size());
    for (int64_t row = begin; row < end; ++row) {
      from.UnpackRow(row, 0, from.count(), old_codes.data());
      for (size_t j = 0; j < source.size(); ++j) codes[j] = old_codes[static_cast<size_t>(source[j])];
      to.PackRow(row, codes.data());
    }
  });
  return to;
}

std::vector<int32_t> Inverse(const std::vector<int32_t>& permutation) {
  std::vector<int32_t> inverse(permutation.size());
  for (size_t j = 0; j < permutation.size(); ++j) {
    inverse[static_cast<size_t>(permutation[j])] = static_cast<int32_t>(j);
  }
  return inverse;
}

Bytes QWeight(const Tensor& tensor) {
  PackedCodes reordered;
  if (tensor.format.permutation) reordered = ReorderColumns(tensor.codes[0], Inverse(tensor.permutation));
  const PackedCodes& codes = tensor.format.permutation ? reordered : tensor.codes[0];
  std::vector<uint32_t> words(codes.words().size());
  TransposeWords(codes.words().data(), codes.rows(), codes.row_words(), words.data());
  return Bytes::Own(std::move(words));
}

Bytes QZeros(const Tensor& tensor, int64_t groups) {
  PackedCodes packed(groups, tensor.rows, tensor.format.bits);
  std::vector<uint16_t> zeros(static_cast<size_t>(tensor.rows),
                              static_cast<uint16_t>(1 << (tensor.format.bits - 1)));
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t r = 0; !tensor.format.symmetric && r < tensor.rows; ++r) {
      zeros[static_cast<size_t>(r)] = tensor.zeros[static_cast<size_t>(r * groups + g)];
    }
    packed.PackRow(g, zeros.data());
  }
  return Bytes::Own(packed.words());
}

/// g_idx, checked: each group has as many columns as its scale is for.
std::vector<int32_t> ReadGroups(const StoredTensor& g_idx, const Format& format, int64_t cols) {
  RequireShape(g_idx, {cols});
  const std::vector<int32_t> group_of = ReadInts<int32_t>(g_idx);
  const int64_t groups = ScaleGroups(format, cols);
  const int64_t width = GroupWidth(format, cols);
  std::vector<int64_t> sizes(static_cast<size_t>(groups));
  for (size_t j = 0; j < group_of.size(); ++j) {
    if (group_of[j] < 0 || group_of[j] >= groups) {
      Fail("{}: column {}: found group {}, allowed: 0 to {}", g_idx.where, j, group_of[j], groups - 1);
    }
    ++sizes[static_cast<size_t>(group_of[j])];
  }
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t wanted = std::min(width, cols - g * width);
    if (sizes[static_cast<size_t>(g)] != wanted) {
      Fail("{}: group {}: found {} columns, allowed: {}", g_idx.where, g, sizes[static_cast<size_t>(g)],
           wanted);
    }
  }
  return group_of;
}

/// The true zero points [rows, groups]. The rule for files of the first version is in papers/format.md.
std::vector<uint8_t> ReadZeros(const StoredTensor& stored, int64_t rows, int64_t groups,
                               const QuantizationConfig& config) {
  const int bits = config.format.bits;
  const uint16_t highest = static_cast<uint16_t>((1 << bits) - 1);
  const uint16_t middle = static_cast<uint16_t>(1 << (bits - 1));
  PackedCodes packed(groups, rows, bits);
  RequireShape(stored, {groups, packed.row_words()});
  packed.words() = ReadWords(stored);
  std::vector<uint8_t> zeros(static_cast<size_t>(rows * groups));
  std::vector<uint16_t> row(static_cast<size_t>(rows));
  bool all_middle = true;  // as stored
  for (int64_t g = 0; g < groups; ++g) {
    packed.UnpackRow(g, 0, rows, row.data());
    for (int64_t r = 0; r < rows; ++r) {
      const uint16_t code = row[static_cast<size_t>(r)];
      all_middle = all_middle && code == middle;
      if (config.zeros_less_one && code == highest) {
        Fail(
            "{}: group {}, output {}: found {}: checkpoint_format gptq cannot tell zero point 0 from {}; "
            "allowed: "
            "0 to {}, or checkpoint_format gptq_v2",
            stored.where, g, r, code, highest + 1, highest - 1);
      }
      zeros[static_cast<size_t>(r * groups + g)] =
          static_cast<uint8_t>(code + (config.zeros_less_one ? 1 : 0));
    }
  }
  if (config.zeros_less_one && all_middle && config.symmetric.value_or(true)) {
    Fail(
        "{}: found {} everywhere, which is what checkpoint_format gptq_v2 stores for symmetric weights, in a "
        "checkpoint that says gptq; allowed: {}, or set checkpoint_format",
        stored.where, middle, middle - 1);
  }
  return zeros;
}

}  // namespace

bool GptqHolds(const Tensor& tensor) {
  const Format& format = tensor.format;
  if (format.kind != FormatKind::kInt || format.rotation || format.input_affine) return false;
  if (tensor.rows * format.bits % 32 != 0 || tensor.cols * format.bits % 32 != 0) return false;
  if (!format.permutation) return true;
  const std::vector<int32_t> group_of = GroupOfColumns(tensor);
  return ColumnsByGroup(group_of) == tensor.permutation && !std::is_sorted(group_of.begin(), group_of.end());
}

void PutGptq(SafetensorsWriter& writer, const std::string& prefix, const Tensor& tensor) {
  VQLLM_CHECK(GptqHolds(tensor), "{}", prefix);
  const int64_t bits = tensor.format.bits;
  const int64_t groups = ScaleGroups(tensor.format, tensor.cols);
  writer.Add(prefix + ".qweight", StoredType::kI32, {tensor.cols * bits / 32, tensor.rows},
             [&tensor] { return QWeight(tensor); });
  writer.Add(prefix + ".qzeros", StoredType::kI32, {groups, tensor.rows * bits / 32},
             [&tensor, groups] { return QZeros(tensor, groups); });
  std::vector<Half> scales(tensor.scales.size());
  for (int64_t r = 0; r < tensor.rows; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      scales[static_cast<size_t>(g * tensor.rows + r)] = tensor.scales[static_cast<size_t>(r * groups + g)];
    }
  }
  writer.Add(prefix + ".scales", {groups, tensor.rows}, scales);
  writer.Add(prefix + ".g_idx", StoredType::kI32, {tensor.cols}, Bytes::Own(GroupOfColumns(tensor)));
}

Tensor GetGptq(const TensorStore& store, const std::string& prefix, const QuantizationConfig& config) {
  const StoredTensor& qweight = store.Get(prefix + ".qweight");
  Tensor tensor;
  tensor.format = config.format;
  const int bits = tensor.format.bits;
  if (qweight.shape.size() != 2 || qweight.elements() == 0 || qweight.shape[0] * 32 % bits != 0 ||
      qweight.shape[1] * bits % 32 != 0) {
    Fail("{}: found shape {}, allowed: [inputs * {} / 32, outputs] with outputs * {} a multiple of 32",
         qweight.where, ShapeText(qweight.shape), bits, bits);
  }
  tensor.rows = qweight.shape[1];
  tensor.cols = qweight.shape[0] * 32 / bits;
  const int64_t groups = ScaleGroups(tensor.format, tensor.cols);

  const StoredTensor& scales = store.Get(prefix + ".scales");
  RequireShape(scales, {groups, tensor.rows});
  const std::vector<Half> by_group = ReadHalves(scales);
  tensor.scales.resize(by_group.size());
  for (int64_t r = 0; r < tensor.rows; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      tensor.scales[static_cast<size_t>(r * groups + g)] = by_group[static_cast<size_t>(g * tensor.rows + r)];
    }
  }

  const StoredTensor& qzeros = store.Get(prefix + ".qzeros");
  tensor.zeros = ReadZeros(qzeros, tensor.rows, groups, config);
  const uint8_t middle = static_cast<uint8_t>(1 << (bits - 1));
  const bool symmetric =
      std::all_of(tensor.zeros.begin(), tensor.zeros.end(), [&](uint8_t z) { return z == middle; });
  if (config.symmetric.value_or(false) && !symmetric) {
    Fail("{}: found zero points other than {}, allowed: no others, as quantization_config says sym",
         qzeros.where, middle);
  }
  // Without a claim, weights whose zero points all lie in the middle are symmetric.
  tensor.format.symmetric = config.symmetric.value_or(symmetric);
  if (tensor.format.symmetric) tensor.zeros.clear();

  PackedCodes& codes = tensor.codes.emplace_back(tensor.rows, tensor.cols, bits);
  TransposeWords(ReadWords(qweight).data(), qweight.shape[0], tensor.rows, codes.words().data());
  if (const StoredTensor* g_idx = store.Find(prefix + ".g_idx")) {
    const std::vector<int32_t> group_of = ReadGroups(*g_idx, tensor.format, tensor.cols);
    if (!std::is_sorted(group_of.begin(), group_of.end())) {
      tensor.format.permutation = true;
      tensor.permutation = ColumnsByGroup(group_of);
      codes = ReorderColumns(codes, tensor.permutation);
    }
  } else if (config.act_order && groups > 1) {
    Fail("{}: {} is missing, but quantization_config says desc_act", store.where(),
         Quoted(prefix + ".g_idx"));
  }
  tensor.format.name = CanonicalName(tensor.format);
  ValidateTensor(tensor, prefix);
  return tensor;
}

}  // namespace vqllm::internal
