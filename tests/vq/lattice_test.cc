#include "vq/lattice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/support/data.h"
#include "vq/base/rng.h"
#include "vq/checkpoint/stored_tensor.h"
#include "vq/checkpoint/tensor_store.h"

namespace vqllm::e8p {
namespace {

double Distance(const float* x, const Vector& v) {
  double sum = 0;
  for (size_t i = 0; i < 8; ++i)
    sum += (static_cast<double>(x[i]) - v[i]) * (static_cast<double>(x[i]) - v[i]);
  return sum;
}

TEST(E8p, AllCodesAreDifferentPointsOfTheShiftedLattice) {
  std::set<Vector> points;
  for (uint32_t code = 0; code < 65536; ++code) {
    const Vector v = Decode(static_cast<uint16_t>(code));
    ASSERT_TRUE(points.insert(v).second) << code;
    // v -+ 1/4 is a vector of half-odd integers whose sum is even: a point of E8.
    const float shift = v[0] - std::floor(v[0]) == 0.75f ? 0.25f : -0.25f;
    float sum = 0;
    for (const float value : v) {
      const float whole = value - shift - 0.5f;
      ASSERT_EQ(whole, std::floor(whole)) << code;
      sum += value - shift;
    }
    ASSERT_EQ(std::fmod(sum, 2), 0) << code;
  }
}

TEST(E8p, EveryPointIsItsOwnCode) {
  for (uint32_t code = 0; code < 65536; ++code) {
    ASSERT_EQ(Encode(Decode(static_cast<uint16_t>(code)).data()), code);
  }
}

TEST(E8p, EncodesToTheNearestOfAllPoints) {
  std::vector<Vector> points;
  for (uint32_t code = 0; code < 65536; ++code) points.push_back(Decode(static_cast<uint16_t>(code)));
  Rng rng(1);
  for (int round = 0; round < 300; ++round) {
    float x[8];
    const float spread = round % 3 == 0 ? 0.3f : round % 3 == 1 ? 1.0f : 4.0f;
    for (float& value : x) value = spread * rng.Normal();
    double best = 1e30;
    for (const Vector& point : points) best = std::min(best, Distance(x, point));
    // Scores are sums of some twenty float terms of about |x|^2.
    double norm = 0;
    for (const float value : x) norm += value * value;
    ASSERT_NEAR(Distance(x, Decode(Encode(x))), best, 40 * 6e-8 * (norm + 20));
  }
}

TEST(E8p, TableIsThePublishedOne) {
  VQLLM_NEED_DATA("tables/e8p_abs_grid.csv");
  std::ifstream file(test::DataDir() / "tables/e8p_abs_grid.csv");
  std::string line;
  std::getline(file, line);
  size_t row = 0;
  for (; std::getline(file, line); ++row) {
    std::istringstream fields(line);
    std::string field;
    std::vector<float> values;
    while (values.size() < 10 && std::getline(fields, field, ',')) values.push_back(std::stof(field));
    ASSERT_EQ(values[0], static_cast<float>(row));
    for (size_t i = 0; i < 8; ++i) ASSERT_EQ(std::fabs(AbsTable()[row][i]), std::fabs(values[1 + i])) << row;
    ASSERT_EQ(AbsTable()[row][7] < 0, values[9] == 1) << row;
  }
  EXPECT_EQ(row, 256u);
}

TEST(E8p, CodesAndValuesAreThoseOfQuipSharp) {
  VQLLM_NEED_DATA("quant_golden/quipsharp_e8p12_64x128.safetensors");
  const TensorStore store =
      TensorStore::OpenFile(test::DataDir() / "quant_golden/quipsharp_e8p12_64x128.safetensors");
  const std::vector<int32_t> codes = ReadInts<int32_t>(store.Get("ref.idxs_u16"));
  const std::vector<float> values = ReadFloats(store.Get("ref.hatW_rotated_fp32"));
  const std::vector<float> input = ReadFloats(store.Get("ref.input_fp32"));
  ASSERT_EQ(codes.size(), 64u * 16);
  int different = 0;
  for (size_t s = 0; s < codes.size(); ++s) {
    const uint16_t code = FromQuipSharp(static_cast<uint16_t>(codes[s]));
    ASSERT_EQ(ToQuipSharp(code), codes[s]);
    const Vector decoded = Decode(code);
    for (size_t i = 0; i < 8; ++i) ASSERT_EQ(decoded[i], values[8 * s + i]);
    float x[8];
    for (size_t i = 0; i < 8; ++i) x[i] = 1.03f * input[8 * s + i];  // "scale_applied_to_input" of the file
    const uint16_t ours = Encode(x);
    if (ours == code) continue;
    ++different;  // a tie within rounding
    EXPECT_NEAR(Distance(x, Decode(ours)), Distance(x, decoded), 1e-5);
  }
  EXPECT_LE(different, 2);
}

}  // namespace
}  // namespace vqllm::e8p
