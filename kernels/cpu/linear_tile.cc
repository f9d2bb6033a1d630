#include "kernels/cpu/linear_tile.h"

#include "vq/base/check.h"
#include "vq/quantizer.h"

namespace vqllm::cpu {
namespace {

class TileLinear final : public StoredLinear {
 public:
  TileLinear(const Tensor& weights, std::vector<float> bias)
      : StoredLinear(weights, std::move(bias), {}, 1), weights_(weights) {}

  int64_t bytes() const override { return StoredBytes(weights_); }

 protected:
  void Fused(MatrixView<const float>, const uint8_t*, int64_t, int64_t, MatrixView<float>) const override {
    VQLLM_CHECK(false, "no fused kernel");
  }
  void DecodeTile(int64_t begin, int64_t end, float* tile) const override {
    DequantizeStored(weights_, begin, {tile, end - begin, cols()});
  }

 private:
  Tensor weights_;
};

}  // namespace

std::unique_ptr<StoredLinear> PrepareTiles(const Tensor& weights, std::vector<float> bias) {
  return std::make_unique<TileLinear>(weights, std::move(bias));
}

}  // namespace vqllm::cpu
