#include "vq/lattice.h"

#include <bit>
#include <cmath>

#include "vq/base/check.h"
#include "vq/base/multiversion.h"

namespace vqllm::e8p {
namespace {

// Which five of the eight values are 3/2 (the others 1/2) in the 29 vectors of squared norm 12 that QuIP#
// chose to fill the table; bit i stands for value i. Numeric constants of the published format.
constexpr uint8_t kNormTwelve[] = {0xf1, 0xf2, 0xf4, 0xf8, 0x37, 0x57, 0x67, 0x97, 0xa7, 0xc7,
                                   0x3b, 0x5b, 0x6b, 0x9b, 0xab, 0xcb, 0x3d, 0x5d, 0x6d, 0x9d,
                                   0xad, 0xce, 0x3e, 0x5e, 0x6e, 0x9e, 0xae, 0xec, 0x73};

constexpr uint32_t kQuipSharpBit[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/// Appends, in lexicographic order, all vectors of half-odd integers that begin with the first `depth` values
/// of v and whose squared norm is at most 10.
void Extend(Vector& v, size_t depth, float norm, std::array<Vector, 256>& table, size_t& count) {
  if (depth == 8) {
    table[count++] = v;
    return;
  }
  for (float value = 0.5f; norm + value * value + 0.25f * static_cast<float>(7 - depth) <= 10; value += 1) {
    v[depth] = value;
    Extend(v, depth + 1, norm + value * value, table, count);
  }
}

std::array<Vector, 256> MakeAbsTable() {
  std::array<Vector, 256> table;
  size_t count = 0;
  Vector v{};
  Extend(v, 0, 0, table, count);
  VQLLM_CHECK(count + std::size(kNormTwelve) == 256, "{} vectors", count);
  for (const uint8_t mask : kNormTwelve) {
    for (size_t i = 0; i < 8; ++i) v[i] = mask >> i & 1 ? 1.5f : 0.5f;
    table[count++] = v;
  }
  for (Vector& row : table) {
    float sum = 0;
    for (const float value : row) sum += value;
    if (static_cast<int>(sum) % 2 != 0) row[7] = -row[7];
  }
  return table;
}

/// The table by columns, so that the search runs over all 256 vectors at once.
struct SearchTable {
  alignas(64) float abs[8][256];
  alignas(64) float half_norm[256];
  alignas(64) float odd[256];  // 1 where the last value is negative
};

const SearchTable& Search() {
  static const SearchTable table = [] {
    SearchTable t;
    for (size_t e = 0; e < 256; ++e) {
      float norm = 0;
      for (size_t i = 0; i < 8; ++i) {
        t.abs[i][e] = std::fabs(AbsTable()[e][i]);
        norm += t.abs[i][e] * t.abs[i][e];
      }
      t.half_norm[e] = norm / 2;
      t.odd[e] = AbsTable()[e][7] < 0 ? 1.0f : 0.0f;
    }
    return t;
  }();
  return table;
}

/// For |y| and the parity of y's signs: <y, v> - |v|^2 / 2 of the best even sign flip of every vector v. An
/// odd number of mismatched signs costs twice the smallest product.
VQLLM_MULTIVERSION void Scores(const SearchTable& t, const float* magnitude, float odd_signs, float* scores) {
  for (size_t e = 0; e < 256; ++e) {
    float dot = 0;
    float smallest = magnitude[0] * t.abs[0][e];
    for (size_t i = 0; i < 8; ++i) {
      const float product = magnitude[i] * t.abs[i][e];
      dot += product;
      smallest = product < smallest ? product : smallest;
    }
    const float odd = t.odd[e] + odd_signs - 2 * t.odd[e] * odd_signs;  // exclusive or
    scores[e] = dot - 2 * odd * smallest - t.half_norm[e];
  }
}

}  // namespace

const std::array<Vector, 256>& AbsTable() {
  static const std::array<Vector, 256> table = MakeAbsTable();
  return table;
}

Vector Decode(uint16_t code) {
  const uint32_t parity = static_cast<uint32_t>(std::popcount(static_cast<uint32_t>(code & 0xff))) & 1;
  const uint32_t signs = (code & 0xffu) ^ parity;
  Vector v = AbsTable()[code >> 8];
  for (uint32_t i = 0; i < 8; ++i) v[i] = (signs >> i & 1 ? -v[i] : v[i]) + (parity ? -0.25f : 0.25f);
  return v;
}

uint16_t FromQuipSharp(uint16_t code) {
  uint32_t ours = code & 0xff00u;
  for (uint32_t i = 0; i < 8; ++i) ours |= (code >> kQuipSharpBit[i] & 1u) << i;
  return static_cast<uint16_t>(ours);
}

uint16_t ToQuipSharp(uint16_t code) {
  uint32_t theirs = code & 0xff00u;
  for (uint32_t i = 0; i < 8; ++i) theirs |= (code >> i & 1u) << kQuipSharpBit[i];
  return static_cast<uint16_t>(theirs);
}

uint16_t Encode(const float* x) {
  const SearchTable& table = Search();
  float best = 0;
  uint32_t code = 0;
  for (uint32_t parity = 0; parity < 2; ++parity) {
    const float shift = parity ? -0.25f : 0.25f;
    float y[8];
    float magnitude[8];
    float offset = 0;  // of |x - v - shift|^2: what does not depend on v
    uint32_t negative = 0;
    for (uint32_t i = 0; i < 8; ++i) {
      y[i] = x[i] - shift;
      magnitude[i] = std::fabs(y[i]);
      offset -= y[i] * y[i] / 2;
      negative |= static_cast<uint32_t>(y[i] < 0) << i;
    }
    float scores[256];
    Scores(table, magnitude, static_cast<float>(std::popcount(negative) & 1), scores);
    uint32_t e = 0;
    for (uint32_t i = 1; i < 256; ++i) {
      if (scores[i] > scores[e]) e = i;
    }
    if (parity == 1 && !(scores[e] + offset > best)) continue;
    best = scores[e] + offset;
    // Flips that turn the stored signs into those of y; an odd number is mended where it costs least.
    const Vector& v = AbsTable()[e];
    uint32_t flips = negative ^ (v[7] < 0 ? 0x80u : 0u);
    if (std::popcount(flips) & 1) {
      uint32_t cheapest = 0;
      for (uint32_t i = 1; i < 8; ++i) {
        if (magnitude[i] * std::fabs(v[i]) < magnitude[cheapest] * std::fabs(v[cheapest])) cheapest = i;
      }
      flips ^= 1u << cheapest;
    }
    code = e << 8 | (flips ^ parity);
  }
  return static_cast<uint16_t>(code);
}

}  // namespace vqllm::e8p
