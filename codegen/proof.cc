#include "codegen/proof.h"

#include <algorithm>
#include <cmath>

#include "codegen/decode/decoder.h"
#include "vq/base/check.h"
#include "vq/base/rng.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

constexpr double kHalfUnit = 0x1p-11;   // relative rounding error of fp16
constexpr double kBFloatUnit = 0x1p-8;  // of bf16: 8 bits of significand, half a unit in the last place
constexpr double kFloatUnit = 0x1p-24;  // of fp32
constexpr double kHalfSubnormal = 0x1p-25;
constexpr double kLatticeMax = 2.75;  // largest |value| of an E8P point

uint16_t Store(DType type, float value) {
  return type == DType::kBF16 ? FloatToBFloat16Bits(value) : FloatToHalfBits(value);
}
float Read(DType type, uint16_t bits) {
  return type == DType::kBF16 ? BFloat16BitsToFloat(bits) : HalfBitsToFloat(bits);
}

/// The sum over stages of |entry| times |scale|: what rounding errors of the decoder are relative to.
std::vector<float> Magnitudes(const Tensor& tensor) {
  Tensor abs = tensor;
  for (auto& book : abs.codebooks) {
    for (Half& value : book) value = Half(std::fabs(static_cast<float>(value)));
  }
  for (Half& scale : abs.scales) scale = Half(std::fabs(static_cast<float>(scale)));
  std::vector<float> out(static_cast<size_t>(tensor.rows * tensor.cols));
  if (tensor.format.kind == FormatKind::kLattice) {
    double sum = 0;
    for (const float factor : tensor.stage_scales) sum += kLatticeMax * std::fabs(factor);
    std::fill(out.begin(), out.end(), static_cast<float>(sum * abs.scales[0]));
    return out;
  }
  DequantizeStored(abs, 0, {out.data(), tensor.rows, tensor.cols});
  for (float& value : out) value = std::fabs(value);
  return out;
}

/// Relative error that the decoded weight carries into the product.
double WeightError(const Plan& plan) {
  const Format& f = plan.format;
  if (plan.compute == Compute::kTable) return 0;  // products of entries are fp32
  double error = 0;
  const bool sums = f.kind == FormatKind::kTable || f.kind == FormatKind::kLattice;
  if (sums) error += (f.stages() - 1) * kHalfUnit;
  if (f.kind == FormatKind::kLattice && f.stages() > 1) error += kHalfUnit;  // the factor of stage 1 as fp16
  if (plan.compute == Compute::kMma) {
    if (f.scale == ScaleKind::kGroup) error += kHalfUnit;
    if (plan.activation == DType::kBF16 && !UnitOf(f).bf16) error += kBFloatUnit;
  }
  return error;
}

}  // namespace

Tensor RandomTensor(const Format& f, int64_t rows, int64_t cols, uint64_t seed) {
  Rng rng(seed);
  Tensor t;
  t.format = f;
  t.rows = rows;
  t.cols = cols;
  if (f.kind == FormatKind::kDense) {
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (float& value : values) value = rng.Normal() * 0.1f;
    t = DenseTensor(f.dtype, rows, cols, values.data());
    t.format = f;
    return t;
  }
  const bool out_axis = f.kind == FormatKind::kTable && f.axis == Axis::kOut;
  const int stages = f.kind == FormatKind::kInt ? 1 : f.stages();
  for (int stage = 0; stage < stages; ++stage) {
    const int64_t code_rows = out_axis ? Subvectors(f, rows) : rows;
    const int64_t count = f.kind == FormatKind::kInt || out_axis ? cols : Subvectors(f, cols);
    const int64_t entries =
        f.kind == FormatKind::kInt ? int64_t{1} << f.bits : f.entries[static_cast<size_t>(stage)];
    PackedCodes codes(code_rows, count, f.CodeBits(stage));
    for (int64_t r = 0; r < code_rows; ++r) {
      for (int64_t c = 0; c < count; ++c)
        codes.Set(r, c, static_cast<uint32_t>(rng.Below(static_cast<uint64_t>(entries))));
    }
    t.codes.push_back(std::move(codes));
    if (f.kind == FormatKind::kTable) {
      std::vector<Half> books(static_cast<size_t>(CodebookCount(f, rows, cols) * entries * f.subvector));
      for (Half& value : books) value = Half(rng.Normal() * std::pow(0.4f, static_cast<float>(stage)));
      t.codebooks.push_back(std::move(books));
    }
    if (f.kind == FormatKind::kLattice) t.stage_scales.push_back(stage == 0 ? 1.0f : 1 / 3.45f);
  }
  const int64_t scales = f.scale == ScaleKind::kNone        ? 0
                         : f.scale == ScaleKind::kPerTensor ? 1
                                                            : rows * ScaleGroups(f, cols);
  for (int64_t i = 0; i < scales; ++i) {
    t.scales.push_back(Half(rng.Uniform(0.01f, 0.05f)));
    if (f.kind == FormatKind::kInt && !f.symmetric)
      t.zeros.push_back(static_cast<uint8_t>(rng.Below(uint64_t{1} << f.bits)));
  }
  if (f.rotation) {
    t.sign_in.assign(static_cast<size_t>(cols), Half(1.0f));
    t.sign_out.assign(static_cast<size_t>(rows), Half(1.0f));
  }
  if (f.permutation) {
    for (int64_t c = 0; c < cols; ++c) t.permutation.push_back(static_cast<int32_t>(cols - 1 - c));
  }
  if (f.input_affine) {
    t.input_scale.assign(static_cast<size_t>(cols), Half(1.0f));
    t.input_offset.assign(static_cast<size_t>(cols), Half(0.0f));
  }
  return t;
}

ProofCase MakeProofCase(const Plan& plan, uint64_t seed, ProofInputs inputs) {
  return MakeProofCase(plan, RandomTensor(plan.format, plan.n, plan.k, seed), seed + 1, inputs);
}

ProofCase MakeProofCase(const Plan& plan, Tensor tensor, uint64_t seed, ProofInputs inputs) {
  VQLLM_CHECK(tensor.rows == plan.n && tensor.cols == plan.k);
  ProofCase proof;
  proof.tensor = std::move(tensor);
  proof.weights = RepackWeights(proof.tensor, plan.layout);
  const size_t n = static_cast<size_t>(plan.n);
  const size_t k = static_cast<size_t>(plan.k);
  std::vector<float> w(n * k);
  DequantizeStored(proof.tensor, 0, {w.data(), plan.n, plan.k});
  const std::vector<float> magnitude = Magnitudes(proof.tensor);
  const double weight_error = WeightError(plan);
  const double out_unit = plan.activation == DType::kBF16 ? kBFloatUnit : kHalfUnit;
  if (plan.op == OpKind::kDequant) {
    for (size_t i = 0; i < w.size(); ++i) {
      const double error = weight_error * magnitude[i] + 2 * kFloatUnit * magnitude[i];
      proof.expected.push_back(w[i]);
      proof.tolerance.push_back(error + out_unit * (std::fabs(w[i]) + error) + kHalfSubnormal);
    }
    return proof;
  }
  Rng rng(seed);
  const size_t m = static_cast<size_t>(plan.m);
  for (size_t i = 0; i < m * k; ++i) {
    const float large = inputs == ProofInputs::kNormal ? 0.0f : i % 2 == 0 ? 1e4f : -1e4f;
    proof.x.push_back(Store(plan.activation, large + rng.Normal()));
  }
  if (plan.bias) {
    for (size_t i = 0; i < n; ++i) proof.bias.push_back(Store(plan.activation, rng.Normal()));
  }
  // Every product takes at most k additions of a chain, one scaling a group, and the sums over lanes, warps,
  // blocks.
  const double chain = (static_cast<double>(k) + 64) * kFloatUnit;
  for (size_t t = 0; t < m; ++t) {
    for (size_t row = 0; row < n; ++row) {
      double sum = 0;
      double total = 0;
      for (size_t c = 0; c < k; ++c) {
        const double x = Read(plan.activation, proof.x[t * k + c]);
        sum += x * w[row * k + c];
        total += std::fabs(x) * magnitude[row * k + c];
      }
      if (plan.bias) {
        const double b = Read(plan.activation, proof.bias[row]);
        sum += b;
        total += std::fabs(b);
      }
      const double error = total * (weight_error + chain);
      proof.expected.push_back(sum);
      proof.tolerance.push_back(error + out_unit * (std::fabs(sum) + error) + kHalfSubnormal);
    }
  }
  return proof;
}

ProofResult CheckProof(const Plan& plan, const ProofCase& proof, const std::vector<uint16_t>& out) {
  VQLLM_CHECK(out.size() == proof.expected.size(), "{} of {}", out.size(), proof.expected.size());
  ProofResult result;
  double largest = 0;
  double worst = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    largest = std::max(largest, std::fabs(proof.expected[i]));
    result.tolerance = std::max(result.tolerance, proof.tolerance[i]);
    const double error = std::fabs(Read(plan.activation, out[i]) - proof.expected[i]);
    const double share = std::isfinite(error) ? error / proof.tolerance[i] : HUGE_VAL;
    worst = std::max(worst, std::isfinite(error) ? error : HUGE_VAL);
    if (share > result.worst_share) {
      result.worst_share = share;
      result.worst_index = static_cast<int64_t>(i);
    }
  }
  const double scale = largest > 0 ? largest : 1;
  result.max_relative_error = worst / scale;
  result.tolerance /= scale;
  result.passed = result.worst_share <= 1;
  return result;
}

}  // namespace vqllm
