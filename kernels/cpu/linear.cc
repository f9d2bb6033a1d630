#include "kernels/cpu/linear.h"

#include <algorithm>
#include <optional>

#include "kernels/cpu/linear_choice.h"
#include "kernels/cpu/linear_kernel.h"
#include "vq/base/check.h"
#include "vq/base/parallel.h"
#include "vq/hadamard.h"

namespace vqllm::cpu {
namespace {

bool TransformsActivations(const Format& f) { return f.rotation || f.permutation || f.input_affine; }

/// W = S_out H_out^T W' H_in S_in (and permuted, scaled columns): the stored matrix W' is multiplied with
/// turned activations, and the products are turned back. Two transforms of n log n operations a token instead
/// of a dense matrix.
class TransformedLinear final : public Linear {
 public:
  TransformedLinear(const Tensor& t, std::vector<float> bias, std::unique_ptr<Linear> stored)
      : Linear(t.rows, t.cols),
        stored_(std::move(stored)),
        bias_(std::move(bias)),
        permutation_(t.permutation),
        input_scale_(t.input_scale.begin(), t.input_scale.end()),
        input_offset_(t.input_offset.begin(), t.input_offset.end()),
        sign_in_(t.sign_in.begin(), t.sign_in.end()),
        sign_out_(t.sign_out.begin(), t.sign_out.end()) {
    if (t.format.rotation) {
      in_.emplace(t.cols);
      out_.emplace(t.rows);
    }
  }

  void Multiply(MatrixView<const float> x, MatrixView<float> y) const override {
    std::vector<float> turned(static_cast<size_t>(x.rows * x.cols));
    std::vector<float> offsets(static_cast<size_t>(x.rows));
    ParallelFor(x.rows, 1, [&](int64_t i, int64_t) {
      offsets[static_cast<size_t>(i)] = TurnIn(x.Row(i), turned.data() + i * x.cols);
    });
    stored_->Multiply({turned.data(), x.rows, x.cols}, y);
    ParallelFor(x.rows, 1, [&](int64_t i, int64_t) { TurnOut(offsets[static_cast<size_t>(i)], y.Row(i)); });
  }

  std::string Kernel(int64_t m) const override { return stored_->Kernel(m); }
  int64_t bytes() const override { return stored_->bytes(); }

 private:
  /// Returns what the column offsets add to every output.
  float TurnIn(const float* x, float* turned) const {
    std::vector<float> scaled(x, x + cols());
    float offset = 0;
    for (size_t c = 0; c < input_scale_.size(); ++c) {
      offset += input_offset_[c] * x[c];
      scaled[c] *= input_scale_[c];
    }
    for (size_t c = 0; c < sign_in_.size(); ++c) scaled[c] *= sign_in_[c];
    if (permutation_.empty()) {
      std::copy(scaled.begin(), scaled.end(), turned);
    } else {
      for (size_t c = 0; c < permutation_.size(); ++c)
        turned[c] = scaled[static_cast<size_t>(permutation_[c])];
    }
    if (in_) in_->Apply(turned);
    return offset;
  }

  void TurnOut(float offset, float* y) const {
    if (out_) out_->ApplyTransposed(y);
    for (size_t r = 0; r < sign_out_.size(); ++r) y[r] *= sign_out_[r];
    for (int64_t r = 0; r < rows(); ++r)
      y[r] += offset + (bias_.empty() ? 0.0f : bias_[static_cast<size_t>(r)]);
  }

  std::unique_ptr<Linear> stored_;
  std::vector<float> bias_;
  std::vector<int32_t> permutation_;
  std::vector<float> input_scale_, input_offset_, sign_in_, sign_out_;
  std::optional<Hadamard> in_, out_;
};

}  // namespace

std::unique_ptr<Linear> PrepareLinear(const Tensor& weights, std::vector<float> bias,
                                      const LinearOptions& options) {
  VQLLM_CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == weights.rows);
  if (!TransformsActivations(weights.format)) return PrepareStored(weights, std::move(bias), options);
  return std::make_unique<TransformedLinear>(weights, std::move(bias), PrepareStored(weights, {}, options));
}

void MultiplyAll(MatrixView<const float> x, std::span<const Product> products) {
  std::vector<StoredProduct> stored;
  for (const Product& product : products) {
    if (const auto* weights = dynamic_cast<const StoredLinear*>(product.weights)) {
      stored.push_back({weights, product.y});
    } else {
      product.weights->Multiply(x, product.y);
    }
  }
  MultiplyStored(x, stored);
}

}  // namespace vqllm::cpu
