#include "codegen/layout.h"

#include "codegen/decode/decoder.h"
#include "codegen/generate.h"
#include "codegen/proof.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

/// The bits of a unit as a kernel finds them: by the formula in layout.h, written down a second time.
uint64_t UnitAt(const WeightLayout& l, const std::vector<uint32_t>& words, int64_t unit_row, int64_t unit) {
  const int64_t segment_units = l.segment_chunks * l.ChunkUnits();
  const int64_t segment = unit / segment_units;
  const int64_t chunks = segment + 1 < l.segments ? l.segment_chunks : l.last_chunks;
  const int64_t in_segment = unit % segment_units;
  const int64_t group = in_segment / (l.lanes_k * l.ChunkUnits());
  const int64_t lanes = std::min<int64_t>(l.lanes_k, chunks - group * l.lanes_k);
  const int64_t in_group = in_segment % (l.lanes_k * l.ChunkUnits());
  const int64_t piece = in_group / l.piece_units;
  const int64_t lane = piece % lanes;
  const int64_t u = piece / lanes * l.piece_units + in_group % l.piece_units;
  const int64_t tile = unit_row / l.TileUnitRows();
  const int64_t slot = unit_row % l.TileUnitRows() / l.lanes_row;
  const int64_t row_lane = unit_row % l.lanes_row;
  const int64_t base = tile * l.TileWords() +
                       (segment * l.segment_chunks + group * l.lanes_k) * l.TileUnitRows() * l.chunk_words;
  uint64_t bits = 0;
  for (int b = 0; b < l.unit_bits; ++b) {
    const int64_t bit = u * l.unit_bits + b;
    const int64_t word = bit / 32;
    const int64_t vector =
        ((slot * l.Planes() + word / l.vector_words) * l.lanes_row + row_lane) * lanes + lane;
    const uint32_t value = words[static_cast<size_t>(base + vector * l.vector_words + word % l.vector_words)];
    bits |= static_cast<uint64_t>(value >> bit % 32 & 1) << b;
  }
  return bits;
}

TEST(Layout, EveryCodeIsWhereKernelsLookForIt) {
  for (const char* name :
       {"aqlm-2x8", "aqlm-3", "VQ<3,5,3>", "VQ<6,10,2>-tile96x192", "VQ<4,8,1>-out", "gptvq-2"}) {
    for (const int m : {1, 16}) {
      Request request;
      request.format = ParseFormat(name);
      request.m = m;
      request.n = 200;
      request.k = 417;
      request.gpu = ParseGpu("a100");
      const WeightLayout layout = MakePlan(request).best.plan.layout;
      const Tensor tensor = RandomTensor(request.format, request.n, request.k, 5);
      const DeviceWeights weights = RepackWeights(tensor, layout);
      ASSERT_EQ(static_cast<int64_t>(weights.codes.size()), layout.Words());
      for (int64_t row = 0; row < tensor.codes[0].rows(); ++row) {
        for (int64_t col = 0; col < tensor.codes[0].count(); ++col) {
          uint64_t want = 0;
          int at = 0;
          for (const PackedCodes& codes : tensor.codes) {
            want |= static_cast<uint64_t>(codes.Get(row, col)) << at;
            at += codes.bits();
          }
          ASSERT_EQ(UnitAt(layout, weights.codes, row, col), want) << name << " " << row << " " << col;
        }
      }
    }
  }
}

TEST(Layout, ScalarUnitsFollowTheGroup) {
  EXPECT_EQ(ScalarUnitCols(4, 128), 8);
  EXPECT_EQ(ScalarUnitCols(2, 64), 16);
  EXPECT_EQ(ScalarUnitCols(3, 96), 32);
  EXPECT_EQ(ScalarUnitCols(3, 40), 8);
  EXPECT_EQ(ScalarUnitCols(4, 12), 4);
  EXPECT_EQ(ScalarUnitCols(4, 5), 1);
  EXPECT_EQ(ScalarUnitCols(4, 0), 8);
}

TEST(Layout, EntriesThatAreNotFiniteAreRefused) {
  Request request;
  request.format = ParseFormat("aqlm-2x8");
  request.n = 8;
  request.k = 64;
  request.gpu = ParseGpu("a100");
  Tensor tensor = RandomTensor(request.format, request.n, request.k, 5);
  tensor.codebooks[1][77] = Half::FromBits(0x7c00);
  EXPECT_THROW(RepackWeights(tensor, MakePlan(request).best.plan.layout), Error);
}

}  // namespace
}  // namespace vqllm
