#include "vq/hadamard.h"

#include <bit>
#include <cmath>

#include "vq/base/check.h"

namespace vqllm {
namespace {

// Above this order the dense Paley factor costs more than the rest of a transform.
constexpr int64_t kMaxPaley = 512;

bool IsPrime(int64_t q) {
  if (q < 2) return false;
  for (int64_t d = 2; d * d <= q; ++d) {
    if (q % d == 0) return false;
  }
  return true;
}

/// The Legendre symbol of every residue of the prime q: +1 for squares, -1 for others, 0 for 0.
std::vector<int> Legendre(int64_t q) {
  std::vector<int> symbol(static_cast<size_t>(q), -1);
  symbol[0] = 0;
  for (int64_t x = 1; x < q; ++x) symbol[static_cast<size_t>(x * x % q)] = 1;
  return symbol;
}

/// Paley I, q = 3 mod 4 prime, order q + 1: H = I + S, S the skew matrix of Legendre symbols bordered by
/// ones.
std::vector<float> PaleyOne(int64_t q) {
  const std::vector<int> symbol = Legendre(q);
  const int64_t n = q + 1;
  std::vector<float> h(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float value = 1;
      if (i > 0 && j == 0) value = -1;
      if (i > 0 && j > 0)
        value = i == j ? 1.0f : static_cast<float>(symbol[static_cast<size_t>((i - j + q) % q)]);
      h[static_cast<size_t>(i * n + j)] = value;
    }
  }
  return h;
}

/// Paley II, q = 1 mod 4 prime, order 2 (q + 1): each element of the symmetric conference matrix becomes a 2
/// x 2 block.
std::vector<float> PaleyTwo(int64_t q) {
  const std::vector<int> symbol = Legendre(q);
  const int64_t n = 2 * (q + 1);
  std::vector<float> h(static_cast<size_t>(n * n));
  for (int64_t i = 0; i <= q; ++i) {
    for (int64_t j = 0; j <= q; ++j) {
      int c = 1;
      if (i == j) c = 0;
      if (i != j && i > 0 && j > 0) c = symbol[static_cast<size_t>((i - j + q) % q)];
      const float block[2][2] = {
          {c == 0 ? 1.0f : static_cast<float>(c), c == 0 ? -1.0f : static_cast<float>(c)},
          {c == 0 ? -1.0f : static_cast<float>(c), c == 0 ? -1.0f : static_cast<float>(-c)}};
      for (int64_t a = 0; a < 2; ++a) {
        for (int64_t b = 0; b < 2; ++b) h[static_cast<size_t>((2 * i + a) * n + 2 * j + b)] = block[a][b];
      }
    }
  }
  return h;
}

/// A Hadamard matrix of the order, or nothing where neither construction reaches it.
std::vector<float> Paley(int64_t order) {
  if (order % 4 == 0 && (order - 1) % 4 == 3 && IsPrime(order - 1)) return PaleyOne(order - 1);
  const int64_t q = order / 2 - 1;
  if (order % 4 == 0 && q % 4 == 1 && IsPrime(q)) return PaleyTwo(q);
  return {};
}

/// The unnormalised Walsh-Hadamard transform of n floats, n a power of two.
void Butterflies(float* x, int64_t n) {
  for (int64_t step = 1; step < n; step *= 2) {
    for (int64_t i = 0; i < n; i += 2 * step) {
      float* a = x + i;
      float* b = a + step;
      for (int64_t j = 0; j < step; ++j) {
        const float sum = a[j] + b[j];
        b[j] = a[j] - b[j];
        a[j] = sum;
      }
    }
  }
}

}  // namespace

Hadamard::Hadamard(int64_t n) : n_(n) {
  VQLLM_CHECK(n >= 1, "size {}", n);
  const int64_t odd = n >> std::countr_zero(static_cast<uint64_t>(n));
  if (odd > 1) {
    for (int64_t order = 4 * odd; order <= kMaxPaley && n % order == 0 && matrix_.empty(); order *= 2) {
      matrix_ = Paley(order);
      if (!matrix_.empty()) paley_ = order;
    }
    if (paley_ == 1) blocks_ = odd;
  }
  power_ = n / paley_ / blocks_;
}

void Hadamard::Apply(float* x) const { Run(x, false); }
void Hadamard::ApplyTransposed(float* x) const { Run(x, true); }

void Hadamard::Run(float* x, bool transposed) const {
  // Q = (Paley (x) Sylvester) / sqrt(order): element i of x is (i / power_, i % power_).
  std::vector<float> row;
  if (paley_ > 1) {
    row.assign(x, x + n_);
    for (int64_t i = 0; i < paley_; ++i) {
      for (int64_t k = 0; k < power_; ++k) x[i * power_ + k] = 0;
      for (int64_t j = 0; j < paley_; ++j) {
        const float sign = matrix_[static_cast<size_t>(transposed ? j * paley_ + i : i * paley_ + j)];
        for (int64_t k = 0; k < power_; ++k)
          x[i * power_ + k] += sign * row[static_cast<size_t>(j * power_ + k)];
      }
    }
  }
  for (int64_t block = 0; block < paley_ * blocks_; ++block) Butterflies(x + block * power_, power_);
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(paley_ * power_)));
  for (int64_t i = 0; i < n_; ++i) x[i] *= scale;
}

}  // namespace vqllm
