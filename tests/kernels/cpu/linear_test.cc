#include "kernels/cpu/linear.h"

#include <gtest/gtest.h>
#define HWY_WANT_AVX3_DL  // the targets of the kernels
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/reference.h"
#include "tests/kernels/cpu/random_tensor.h"
#include "vq/base/parallel.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

using cpu::LinearOptions;
using testing::TensorMaker;

constexpr double kEpsilon = 0x1p-24;

/// What a product may differ from the oracle by, derived: W [rows, cols] dense, x one row.
class Bound {
 public:
  Bound(const Tensor& t, bool exact) : tensor_(t), exact_(exact), w_(static_cast<size_t>(t.rows * t.cols)) {
    Dequantize(t, 0, {w_.data(), t.rows, t.cols});
    for (const float w : w_) norm_ += static_cast<double>(w) * w;
    norm_ = std::sqrt(norm_);
    std::vector<float> stored(w_.size());
    DequantizeStored(t, 0, {stored.data(), t.rows, t.cols});
    for (int64_t r = 0; r < t.rows; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < t.cols; ++c) sum += std::fabs(stored[static_cast<size_t>(r * t.cols + c)]);
      row_sum_.push_back(sum);
    }
    for (size_t stage = 0; stage < t.codebooks.size(); ++stage) {
      double most = 0;
      for (size_t e = 0; e < t.codebooks[stage].size(); e += static_cast<size_t>(t.format.subvector)) {
        double sum = 0;
        for (int i = 0; i < t.format.subvector; ++i)
          sum += std::fabs(static_cast<double>(t.codebooks[stage][e + static_cast<size_t>(i)]));
        most = std::max(most, sum);
      }
      entry_ = std::max(entry_, most);
    }
    for (const Half& scale : t.scales) scale_ = std::max(scale_, std::fabs(static_cast<double>(scale)));
    if (t.scales.empty()) scale_ = 1;
  }

  double operator()(const float* x, int64_t row) const {
    double largest = 0;
    double x_norm = 0;
    double magnitude = 0;
    for (int64_t c = 0; c < tensor_.cols; ++c) {
      largest = std::max(largest, std::fabs(static_cast<double>(x[c])));
      x_norm += static_cast<double>(x[c]) * x[c];
      magnitude += std::fabs(static_cast<double>(x[c]) * w_[static_cast<size_t>(row * tensor_.cols + c)]);
    }
    // A sum of n products in any order is off by at most n epsilon of the sum of magnitudes; a rotation mixes
    // rows and columns, so that only norms bound it; the stages of a subvector may cancel.
    const int64_t n = tensor_.cols + 16;
    const Format& f = tensor_.format;
    double bound = static_cast<double>(n) * kEpsilon * magnitude + 1e-30;
    if (f.rotation || f.permutation || f.input_affine)
      bound += static_cast<double>(n + tensor_.rows) * kEpsilon * (norm_ + 1) * (std::sqrt(x_norm) + 1);
    const double lookups =
        static_cast<double>(Subvectors8()) * static_cast<double>(std::max<size_t>(1, f.entries.size()));
    if (f.kind == FormatKind::kTable)
      bound += static_cast<double>(n) * kEpsilon * lookups * scale_ * entry_ * largest;
    if (exact_) return bound;
    // Half a step of 1/127 of the largest activation, or of the largest product of an entry.
    if (f.kind == FormatKind::kInt) bound += 1.001 * largest / 254 * row_sum_[static_cast<size_t>(row)];
    if (f.kind == FormatKind::kTable) bound += 1.001 * lookups * scale_ * entry_ * largest / 254;
    return bound;
  }

 private:
  int64_t Subvectors8() const {
    return tensor_.format.subvector > 0 ? Subvectors(tensor_.format, tensor_.cols) : tensor_.cols;
  }
  const Tensor& tensor_;
  bool exact_;
  std::vector<float> w_;
  std::vector<double> row_sum_;
  double norm_ = 0;
  double entry_ = 0;
  double scale_ = 0;
};

/// Multiplies into a buffer whose every other float is poison, and compares.
void ExpectProduct(const Tensor& t, int64_t m, bool exact, uint64_t seed) {
  TensorMaker maker(seed);
  const std::vector<float> bias = maker.Values(t.rows);
  std::vector<float> x(static_cast<size_t>(m * (t.cols + 3)), std::numeric_limits<float>::quiet_NaN());
  const MatrixView<float> xs{x.data(), m, t.cols, t.cols + 3};
  for (int64_t i = 0; i < m; ++i) {
    for (float& value : xs.RowSpan(i)) value = maker.Uniform();
  }
  constexpr float kPoison = -12345.0f;
  std::vector<float> y(static_cast<size_t>(m * (t.rows + 5) + 64), kPoison);
  const MatrixView<float> ys{y.data(), m, t.rows, t.rows + 5};
  const auto linear = cpu::PrepareLinear(t, bias, {.exact = exact});
  linear->Multiply(xs, ys);
  std::vector<float> want(static_cast<size_t>(m * t.rows));
  reference::MatMul(xs, t, bias, {want.data(), m, t.rows});
  const Bound bound(t, exact);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t r = 0; r < t.rows; ++r) {
      ASSERT_NEAR(ys(i, r), want[static_cast<size_t>(i * t.rows + r)], bound(xs.Row(i), r) + 2e-7)
          << t.format.name << " " << t.rows << " x " << t.cols << ", m " << m << ", y[" << i << ", " << r
          << "] by " << linear->Kernel(m);
    }
    for (int64_t r = t.rows; r < t.rows + 5; ++r)
      ASSERT_EQ(y[static_cast<size_t>(i * (t.rows + 5) + r)], kPoison) << t.format.name;
  }
}

std::vector<std::string> WeightFormats() {
  std::vector<std::string> names;
  for (const Format& f : NamedFormats()) {
    if (!f.name.starts_with("kv-") && !f.name.starts_with("cq-")) names.push_back(f.name);
  }
  for (const char* odd :
       {"VQ<3,5,3>", "VQ<6,10,2>", "VQ<16,16,1>", "VQ<1,4,2>", "VQ<2,8,1>-row", "VQ<5,3,2>-g40", "VQ<4,4,2>",
        "VQ<8,4,8>-row", "VQ<2,4,1>-ingroup64-g64", "VQ<4,8,1>-tile24x40", "VQ<4,8,1>-tile30x40-g20",
        "VQ<7,9,2>-out", "VQ<8,12,1>-out-row", "VQ<6,4,2>-out-ingroup32-g48", "VQ<4,8,2>-head", "VQ<3,2,4>",
        "VQ<4,4,1>-tile96x64"}) {
    if (std::find(names.begin(), names.end(), odd) == names.end()) names.push_back(odd);
  }
  return names;
}

class LinearFormats : public ::testing::TestWithParam<std::string> {};

TEST_P(LinearFormats, MatchTheOracleOnEveryTarget) {
  const Format format = ParseFormat(GetParam());
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    uint64_t seed = 1;
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 1}, {1, 130}, {70, 3}, {33, 257}, {130, 384}, {64, 128}}) {
      const Tensor t = TensorMaker(seed).Make(format, rows, cols);
      for (const int64_t m : {1, 3, 17}) {
        for (const bool exact : {false, true}) {
          SCOPED_TRACE(hwy::TargetName(target));
          ExpectProduct(t, m, exact, ++seed);
          if (HasFatalFailure()) {
            hwy::SetSupportedTargetsForTest(0);
            return;
          }
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

std::string TestName(const ::testing::TestParamInfo<std::string>& info) {
  std::string name;
  for (const char c : info.param) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, LinearFormats, ::testing::ValuesIn(WeightFormats()), TestName);

}  // namespace
}  // namespace vqllm
