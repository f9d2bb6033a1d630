#include "kernels/cpu/linear_dense.h"

#include <hwy/cache_control.h>

#include "vq/base/check.h"

#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear_dense.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "kernels/cpu/linear-inl.h"

VQLLM_BEFORE_NAMESPACE();
namespace vqllm::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR

/// kLanes weights at any alignment as floats.
template <DType kType>
HWY_INLINE VF LoadWeights(const uint8_t* bytes) {
  const F32 f;
  const hn::Repartition<uint8_t, hn::Rebind<uint16_t, F32>> half_bytes;
  const hn::Rebind<uint16_t, F32> u16;
  if constexpr (kType == DType::kF32) return hn::BitCast(f, hn::LoadU(U8(), bytes));
  const auto bits = hn::BitCast(u16, hn::LoadU(half_bytes, bytes));
  if constexpr (kType == DType::kF16) {
    return hn::PromoteTo(f, hn::BitCast(hn::Rebind<hwy::float16_t, F32>(), bits));
  } else {
    return hn::BitCast(f, hn::ShiftLeft<16>(hn::PromoteTo(U32(), bits)));
  }
}

/// The last n < kLanes weights of a row, zeros behind them.
template <DType kType>
HWY_INLINE VF LoadLast(const uint8_t* bytes, int64_t n) {
  constexpr int64_t kSize = kType == DType::kF32 ? 4 : 2;
  HWY_ALIGN uint8_t last[kLanes * 4] = {};
  std::memcpy(last, bytes, static_cast<size_t>(n * kSize));
  return LoadWeights<kType>(last);
}

/// kRows rows of W times kM rows of x. Two sums a product cover half the latency of a fused multiply-add, the
/// rows the rest. A single token asks for the rows after these meanwhile: short rows end before the hardware
/// has seen a stream in them.
template <DType kType, int kRows, int kM>
HWY_NOINLINE void Block(const uint8_t* w, int64_t row_bytes, MatrixView<const float> x, int64_t token,
                        MatrixView<float> y, int64_t row) {
  constexpr int64_t kSize = kType == DType::kF32 ? 4 : 2;
  const F32 f;
  VF sum[kM][kRows];
  for (int t = 0; t < kM; ++t) {
    for (int r = 0; r < kRows; ++r) sum[t][r] = hn::Zero(f);
  }
  int64_t c = 0;
  for (; c + kLanes <= x.cols; c += kLanes) {
    VF values[kRows];
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* place = w + r * row_bytes + c * kSize;
      if (kM == 1) hwy::Prefetch(place + kRows * row_bytes);
      values[r] = LoadWeights<kType>(place);
    }
    for (int t = 0; t < kM; ++t) {
      const VF xs = hn::LoadU(f, x.Row(token + t) + c);
      for (int r = 0; r < kRows; ++r) sum[t][r] = hn::MulAdd(values[r], xs, sum[t][r]);
    }
  }
  if (c < x.cols) {
    const int64_t n = x.cols - c;
    for (int t = 0; t < kM; ++t) {
      HWY_ALIGN float last[kLanes] = {};
      std::memcpy(last, x.Row(token + t) + c, static_cast<size_t>(n) * 4);
      for (int r = 0; r < kRows; ++r) {
        const VF values = LoadLast<kType>(w + r * row_bytes + c * kSize, n);
        sum[t][r] = hn::MulAdd(values, hn::Load(f, last), sum[t][r]);
      }
    }
  }
  for (int t = 0; t < kM; ++t) {
    for (int r = 0; r < kRows; ++r) y(token + t, row + r) = hn::GetLane(hn::SumOfLanes(f, sum[t][r]));
  }
}

template <DType kType, int kM>
HWY_INLINE void Rows(const uint8_t* w, int64_t row_bytes, MatrixView<const float> x, int64_t token,
                     int64_t begin, int64_t end, MatrixView<float> y) {
  constexpr int kRows = kM == 1 ? 8 : 4;
  int64_t row = begin;
  for (; row + kRows <= end; row += kRows)
    Block<kType, kRows, kM>(w + row * row_bytes, row_bytes, x, token, y, row);
  for (; row < end; ++row) Block<kType, 1, kM>(w + row * row_bytes, row_bytes, x, token, y, row);
}

template <DType kType>
void Product(const uint8_t* w, int64_t row_bytes, MatrixView<const float> x, int64_t begin, int64_t end,
             MatrixView<float> y) {
  int64_t token = 0;
  // A strip of rows stays in L1 or L2 while the next tokens pass over it.
  for (; token + 4 <= x.rows && kLanes == 16; token += 4)
    Rows<kType, 4>(w, row_bytes, x, token, begin, end, y);
  for (; token + 2 <= x.rows; token += 2) Rows<kType, 2>(w, row_bytes, x, token, begin, end, y);
  for (; token < x.rows; ++token) Rows<kType, 1>(w, row_bytes, x, token, begin, end, y);
}

template <DType kType>
void Decode(const uint8_t* w, int64_t count, float* out) {
  constexpr int64_t kSize = kType == DType::kF32 ? 4 : 2;
  const F32 f;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(LoadWeights<kType>(w + i * kSize), f, out + i);
  if (i == count) return;
  HWY_ALIGN float last[kLanes];
  hn::Store(LoadLast<kType>(w + i * kSize, count - i), f, last);
  std::memcpy(out + i, last, static_cast<size_t>(count - i) * 4);
}

void DenseProduct(DType type, const uint8_t* w, int64_t row_bytes, MatrixView<const float> x, int64_t begin,
                  int64_t end, MatrixView<float> y) {
  switch (type) {
    case DType::kF32:
      return Product<DType::kF32>(w, row_bytes, x, begin, end, y);
    case DType::kF16:
      return Product<DType::kF16>(w, row_bytes, x, begin, end, y);
    case DType::kBF16:
      return Product<DType::kBF16>(w, row_bytes, x, begin, end, y);
  }
}

void DenseDecode(DType type, const uint8_t* w, int64_t count, float* out) {
  switch (type) {
    case DType::kF32:
      return Decode<DType::kF32>(w, count, out);
    case DType::kF16:
      return Decode<DType::kF16>(w, count, out);
    case DType::kBF16:
      return Decode<DType::kBF16>(w, count, out);
  }
}

#else  // HWY_SCALAR: HaveVectors() is false and nothing calls these.

void DenseProduct(DType, const uint8_t*, int64_t, MatrixView<const float>, int64_t, int64_t,
                  MatrixView<float>) {
  VQLLM_CHECK(false);
}
void DenseDecode(DType, const uint8_t*, int64_t, float*) { VQLLM_CHECK(false); }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace vqllm::cpu
VQLLM_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vqllm::cpu {
namespace {

HWY_EXPORT(DenseProduct);
HWY_EXPORT(DenseDecode);

class DenseLinear final : public StoredLinear {
 public:
  DenseLinear(const Tensor& t, std::vector<float> bias, FusedKernel kernel)
      : StoredLinear(t, std::move(bias), std::move(kernel), 8),
        type_(t.format.dtype),
        row_bytes_(t.cols * BytesPerElement(t.format.dtype)),
        values_(t.values) {}

  int64_t bytes() const override { return static_cast<int64_t>(values_.size()); }

 protected:
  void Fused(MatrixView<const float> x, const uint8_t*, int64_t begin, int64_t end,
             MatrixView<float> y) const override {
    HWY_DYNAMIC_DISPATCH(DenseProduct)(type_, values_.data(), row_bytes_, x, begin, end, y);
  }
  void DecodeTile(int64_t begin, int64_t end, float* tile) const override {
    HWY_DYNAMIC_DISPATCH(DenseDecode)
    (type_, values_.data() + begin * row_bytes_, (end - begin) * cols(), tile);
  }

 private:
  DType type_;
  int64_t row_bytes_;
  Bytes values_;
};

}  // namespace

std::unique_ptr<StoredLinear> PrepareDense(const Tensor& weights, std::vector<float> bias,
                                           FusedKernel kernel) {
  return std::make_unique<DenseLinear>(weights, std::move(bias), std::move(kernel));
}

}  // namespace vqllm::cpu
#endif
