#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "tests/runtime/ptx/support.h"
#include "tests/runtime/ptx/support/exact.h"
#include "vq/base/half.h"
#include "vq/base/rng.h"

/// Matrices: which lane and register holds which element, by the formulas of the PTX ISA.
namespace vqllm::ptx::test {
namespace {

// Shared memory filled with halves 0, 1, 2 ... : each loaded value tells where it came from.
WarpResult LoadMatrix(const std::string& opcode, int registers, const std::string& list) {
  return RunWarp(
      "mul.lo.u32 %r20, %r0, 16;\nmov.u32 %r21, sm;\nadd.u32 %r20, %r20, %r21;\n"
      "mul.lo.u32 %r22, %r0, 0x80008;\nadd.u32 %r23, %r22, 0x10000;\nst.shared.u32 [%r20], %r23;\n"
      "add.u32 %r23, %r22, 0x30002;\nst.shared.u32 [%r20+4], %r23;\nadd.u32 %r23, %r22, 0x50004;\n"
      "st.shared.u32 [%r20+8], %r23;\nadd.u32 %r23, %r22, 0x70006;\nst.shared.u32 [%r20+12], %r23;\n"
      "bar.warp.sync -1;\n" +
          opcode + " " + list + ", [%r20];\n",
      registers, std::vector<uint32_t>{}, ".shared .align 16 .b8 sm[512];\n");
}

TEST(IsaMatrix, LdmatrixFragmentsElementByElement) {
  for (const bool trans : {false, true}) {
    for (const int matrices : {1, 2, 4}) {
      const std::string list = matrices == 1   ? "{%r1}"
                               : matrices == 2 ? "{%r1, %r2}"
                                               : "{%r1, %r2, %r3, %r4}";
      const WarpResult result = LoadMatrix(
          fmt::format("ldmatrix.sync.aligned.m8n8.x{}{}.shared.b16", matrices, trans ? ".trans" : ""),
          matrices, list);
      EXPECT_EQ(Text(result.report.hazards), "");
      for (int lane = 0; lane < 32; ++lane) {
        for (int q = 0; q < matrices; ++q) {
          for (int e = 0; e < 2; ++e) {
            // Row lane / 4, columns 2 (lane % 4) and the next; rows and columns change places with .trans.
            const int i = lane / 4;
            const int j = 2 * (lane % 4) + e;
            const int row = trans ? j : i;
            const int column = trans ? i : j;
            const uint32_t half = result.out[lane * matrices + q] >> (16 * e) & 0xffff;
            ASSERT_EQ(half, static_cast<uint32_t>((q * 8 + row) * 8 + column))
                << trans << " " << lane << " " << q;
          }
        }
      }
      EXPECT_EQ(result.report.counters[Counter::kMatrixLoadWavefronts], static_cast<uint64_t>(matrices));
    }
  }
}

// Lane l gives registers %r10 .. and the addresses of the rows are those of LoadMatrix; what lies in shared
// memory afterwards is read back by words.
TEST(IsaMatrix, StmatrixFragmentsElementByElement) {
  for (const bool trans : {false, true}) {
    for (const int matrices : {1, 2, 4}) {
      const std::string list = matrices == 1   ? "{%r10}"
                               : matrices == 2 ? "{%r10, %r11}"
                                               : "{%r10, %r11, %r12, %r13}";
      // Register q of lane l holds the halves 64 q + 2 l and the next: its number among the elements.
      std::string body = "shl.b32 %r5, %r0, 1;\nmad.lo.u32 %r10, %r5, 0x10001, 0x10000;\n";
      for (int q = 1; q < 4; ++q) body += fmt::format("add.u32 %r{}, %r10, {};\n", 10 + q, 64 * q * 0x10001);
      body +=
          "shl.b32 %r20, %r0, 4;\nmov.u32 %r21, sm;\nadd.u32 %r20, %r20, %r21;\n"
          "st.shared.v4.u32 [%r20], {%r21, %r21, %r21, %r21};\nbar.warp.sync -1;\n" +
          fmt::format("stmatrix.sync.aligned.m8n8.x{}{}.shared.b16 [%r20], {};\nbar.warp.sync -1;\n",
                      matrices, trans ? ".trans" : "", list) +
          "ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%r20];\n";
      const WarpResult result = RunWarp(body, 4, std::vector<uint32_t>{}, ".shared .align 16 .b8 sm[512];\n");
      EXPECT_EQ(Text(result.report.hazards), "");
      for (int row = 0; row < 8 * matrices; ++row) {  // row % 8 of matrix row / 8
        for (int column = 0; column < 8; ++column) {
          const int i = trans ? column : row % 8;
          const int j = trans ? row % 8 : column;
          const uint32_t half = result.out[row * 4 + column / 2] >> (16 * (column % 2)) & 0xffff;
          ASSERT_EQ(half, static_cast<uint32_t>(row / 8 * 64 + 2 * (4 * i + j / 2) + j % 2))
              << trans << " x" << matrices << " row " << row << " column " << column;
        }
      }
    }
  }
}

TEST(IsaMatrix, MovmatrixTransposes) {
  const WarpResult result = RunWarp(
      "shl.b32 %r5, %r0, 1;\nmad.lo.u32 %r10, %r5, 0x10001, 0x10000;\n"
      "movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r10;\n",
      1);
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 2; ++e) {
      const int row = lane / 4;
      const int column = 2 * (lane % 4) + e;
      EXPECT_EQ(result.out[lane] >> (16 * e) & 0xffff, static_cast<uint32_t>(8 * column + row));
    }
  }
}

/// The fragments of one mma: element i of lane 4 g + t lies at (row, column).
struct Place {
  int row;
  int column;
};
struct Fragment {
  int elements;  ///< of a lane
  int bits;      ///< of an element
  std::function<Place(int g, int t, int i)> at;
  int registers() const { return elements * bits / 32; }
};
struct Number {
  int bits;
  std::function<uint32_t(int)> encode;  ///< a small whole number
};
struct MmaCase {
  std::string opcode;
  int m, k;
  Fragment a, b, c;
  Number a_type, b_type, c_type;
};

Fragment Accumulator(int m, int bits) {
  return {m == 8 ? 2 : 4, bits, [](int g, int t, int i) {
            return Place{g + (i >= 2 ? 8 : 0), 2 * t + (i & 1)};
          }};
}
// Sections "Matrix fragments for mma.m16n8k4" to "...k32": f16 and bf16.
Fragment HalvesA(int k) {
  return {k / 2, 16, [](int g, int t, int i) {
            return Place{g + (i / 2 % 2 ? 8 : 0), 2 * t + (i & 1) + (i >= 4 ? 8 : 0)};
          }};
}
Fragment HalvesB(int k) {
  return {k / 4, 16, [](int g, int t, int i) { return Place{2 * t + (i & 1) + (i >= 2 ? 8 : 0), g}; }};
}
// tf32: m16n8k4 has two elements of A and one of B, m16n8k8 four and two.
Fragment WordsA(int k) {
  return {k / 2, 32, [](int g, int t, int i) { return Place{g + (i & 1 ? 8 : 0), t + (i >= 2 ? 4 : 0)}; }};
}
Fragment WordsB(int k) {
  return {k / 4, 32, [](int g, int t, int i) { return Place{t + (i >= 1 ? 4 : 0), g}; }};
}
// Bytes: s8, u8, e4m3, e5m2.
Fragment BytesA(int m, int k) {
  return {m * k / 32, 8, [m](int g, int t, int i) {
            if (m == 8) return Place{g, 4 * t + i};
            return Place{g + (i / 4 % 2 ? 8 : 0), 4 * t + (i & 3) + (i >= 8 ? 16 : 0)};
          }};
}
Fragment BytesB(int k) {
  return {k / 4, 8, [](int g, int t, int i) { return Place{4 * t + (i & 3) + (i >= 4 ? 16 : 0), g}; }};
}

Number Float(const FloatKind& kind, int shift = 0) {
  return {kind.bits + shift, [=](int value) {
            Exact exact = FromInteger(static_cast<uint64_t>(static_cast<int64_t>(value)), true);
            return static_cast<uint32_t>(Encode(kind, exact, Round::kNearest) << shift);
          }};
}
const Number kInteger = {32, [](int value) { return static_cast<uint32_t>(value); }};

// Random whole numbers in [low, high], whose sums are exact in all types.
void CheckMma(const MmaCase& mma, int low, int high) {
  SCOPED_TRACE(mma.opcode);
  Rng rng(static_cast<uint64_t>(mma.m * mma.k));
  const int words = mma.a.registers() + mma.b.registers() + mma.c.registers();
  std::vector<uint32_t> input(static_cast<size_t>(32 * words), 0);
  std::vector<std::vector<int>> a(16, std::vector<int>(32)), b(32, std::vector<int>(8)),
      c(16, std::vector<int>(8));
  for (int lane = 0; lane < 32; ++lane) {
    int first = 0;  // register
    const auto fill = [&](const Fragment& fragment, const Number& type, std::vector<std::vector<int>>& matrix,
                          int least) {
      for (int i = 0; i < fragment.elements; ++i) {
        const int value = least + static_cast<int>(rng.Below(static_cast<uint64_t>(high - least + 1)));
        const Place place = fragment.at(lane / 4, lane % 4, i);
        matrix[place.row][place.column] = value;
        const uint32_t mask = fragment.bits == 32 ? ~0u : (1u << fragment.bits) - 1;
        input[lane * words + first + i * fragment.bits / 32] |= (type.encode(value) & mask)
                                                                << (i * fragment.bits % 32);
      }
      first += fragment.registers();
    };
    const bool a_unsigned = mma.opcode.find(".s32.u8") != std::string::npos;
    const bool b_unsigned = mma.opcode.find("u8.s32") != std::string::npos;
    fill(mma.a, mma.a_type, a, a_unsigned ? 0 : low);
    fill(mma.b, mma.b_type, b, b_unsigned ? 0 : low);
    fill(mma.c, mma.c_type, c, low);
  }
  std::string body = fmt::format("mul.wide.u32 %l2, %r0, {};\nadd.s64 %l2, %l2, %l1;\n", 4 * words);
  for (int w = 0; w < words; ++w) body += fmt::format("ld.global.u32 %r{}, [%l2+{}];\n", 8 + w, 4 * w);
  const auto list = [](int first, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += fmt::format("{}%r{}", i ? ", " : "", first + i);
    return "{" + text + "}";
  };
  const int na = mma.a.registers();
  const int nb = mma.b.registers();
  const int nc = mma.c.registers();
  body += fmt::format("{} {}, {}, {}, {};\n", mma.opcode, list(1, nc), list(8, na), list(8 + na, nb),
                      list(8 + na + nb, nc));
  const WarpResult result = RunWarp(body, nc, input);
  EXPECT_EQ(Text(result.report.hazards), "");
  EXPECT_EQ(result.report.counters[Counter::kTensorFlops], static_cast<uint64_t>(2 * mma.m * 8 * mma.k));
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < mma.c.elements; ++i) {
      const Place place = mma.c.at(lane / 4, lane % 4, i);
      int sum = c[place.row][place.column];
      for (int k = 0; k < mma.k; ++k) sum += a[place.row][k] * b[k][place.column];
      const uint32_t found = result.out[lane * nc + i * mma.c.bits / 32] >> (i * mma.c.bits % 32);
      const uint32_t mask = mma.c.bits == 32 ? ~0u : 0xffffu;
      ASSERT_EQ(found & mask, mma.c_type.encode(sum) & mask) << "lane " << lane << " element " << i;
    }
  }
}

TEST(IsaMatrix, MmaOfHalvesElementByElement) {
  for (const int k : {8, 16}) {
    const auto check = [&](const std::string& types, const Fragment& c, const FloatKind& ab,
                           const FloatKind& kind) {
      CheckMma({fmt::format("mma.sync.aligned.m16n8k{}.row.col.{}", k, types), 16, k, HalvesA(k), HalvesB(k),
                c, Float(ab), Float(ab), Float(kind)},
               -4, 4);
    };
    check("f32.f16.f16.f32", Accumulator(16, 32), kF16Kind, kF32Kind);
    check("f16.f16.f16.f16", Accumulator(16, 16), kF16Kind, kF16Kind);
    check("f32.bf16.bf16.f32", Accumulator(16, 32), kBf16Kind, kF32Kind);
  }
}

TEST(IsaMatrix, MmaOfTf32ElementByElement) {
  for (const int k : {4, 8}) {
    CheckMma({fmt::format("mma.sync.aligned.m16n8k{}.row.col.f32.tf32.tf32.f32", k), 16, k, WordsA(k),
              WordsB(k), Accumulator(16, 32), Float(kTf32Kind, 13), Float(kTf32Kind, 13), Float(kF32Kind)},
             -9, 9);
  }
}

TEST(IsaMatrix, MmaOfIntegersElementByElement) {
  for (const auto& [m, k] : {std::pair(8, 16), std::pair(16, 16), std::pair(16, 32)}) {
    for (const char* types : {"s8.s8", "s8.u8", "u8.s8", "u8.u8"}) {
      for (const char* satfinite : {"", ".satfinite"}) {
        CheckMma({fmt::format("mma.sync.aligned.m{}n8k{}.row.col{}.s32.{}.s32", m, k, satfinite, types), m, k,
                  BytesA(m, k), BytesB(k), Accumulator(m, 32), kInteger, kInteger, kInteger},
                 -100, 100);
      }
    }
  }
}

TEST(IsaMatrix, MmaOfEightBitFloatsElementByElement) {
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      for (const char* kind : {"", ".kind::f8f6f4"}) {
        CheckMma({fmt::format("mma.sync.aligned.m16n8k32.row.col{}.f32.{}.{}.f32", kind, a ? "e5m2" : "e4m3",
                              b ? "e5m2" : "e4m3"),
                  16, 32, BytesA(16, 32), BytesB(32), Accumulator(16, 32), Float(a ? kE5m2Kind : kE4m3Kind),
                  Float(b ? kE5m2Kind : kE4m3Kind), Float(kF32Kind)},
                 -4, 4);
      }
    }
  }
}

// One product in a matrix of zeros: what a lone element of A, B and C gives.
uint32_t OneProduct(const std::string& opcode, int registers_a, int registers_b, uint32_t a, uint32_t b,
                    uint32_t c) {
  std::string body = "mov.u32 %r20, 0;\nsetp.eq.u32 %p1, %r0, 0;\n" +
                     fmt::format("selp.b32 %r21, {}, 0, %p1;\nselp.b32 %r22, {}, 0, %p1;\n", a, b) +
                     fmt::format("mov.u32 %r23, {};\n", c);
  const auto list = [](const std::string& first, int count) {
    std::string text = "{" + first;
    for (int i = 1; i < count; ++i) text += ", %r20";
    return text + "}";
  };
  body += opcode + " {%r1, %r2, %r3, %r4}, " + list("%r21", registers_a) + ", " + list("%r22", registers_b) +
          ", {%r23, %r20, %r20, %r20};\n";
  return RunWarp(body, 1).out[0];
}

TEST(IsaMatrix, MmaOfEdgeValues) {
  const auto halves = [](uint32_t a, uint32_t b, uint32_t c) {
    return OneProduct("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 4, 2, a, b, c);
  };
  EXPECT_EQ(halves(1, 1, 0), std::bit_cast<uint32_t>(0x1p-48f)) << "subnormal halves count";
  EXPECT_EQ(halves(0x7bff, 0x7bff, 0), std::bit_cast<uint32_t>(65504.0f * 65504.0f));
  EXPECT_EQ(halves(0x7c00, 0x3c00, 0), 0x7f800000u);
  EXPECT_EQ(halves(0x7c00, 0, 0), 0x7fffffffu) << "infinity times zero";
  EXPECT_EQ(halves(0x7c00, 0x3c00, 0xff800000u), 0x7fffffffu) << "infinity less infinity";
  EXPECT_EQ(halves(0x7e00, 0x3c00, 0), 0x7fffffffu);
  EXPECT_EQ(halves(0x3c00, 0x3c00, 0x4b800000u), 0x4b800000u) << "2^24 + 1 rounds to even";
  const auto bytes = [](const std::string& satfinite, uint32_t a, uint32_t b, uint32_t c) {
    return OneProduct("mma.sync.aligned.m16n8k32.row.col" + satfinite + ".s32.s8.s8.s32", 4, 2, a, b, c);
  };
  EXPECT_EQ(bytes("", 0x80, 0x80, 0), 16384u);
  EXPECT_EQ(bytes("", 0x7f, 0x7f, 0x7fffffffu), 0x7fffffffu + 16129u) << "wraps";
  EXPECT_EQ(bytes(".satfinite", 0x7f, 0x7f, 0x7fffffffu), 0x7fffffffu);
  EXPECT_EQ(bytes(".satfinite", 0x80, 0x7f, 0x80000000u), 0x80000000u);
  const auto tf32 = [](uint32_t a, uint32_t b, uint32_t c) {
    return OneProduct("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2, a, b, c);
  };
  EXPECT_EQ(tf32(0x3f801fffu, 0x3f800000u, 0), 0x3f800000u) << "the low 13 bits are not there";
  const auto eights = [](const std::string& types, uint32_t a, uint32_t b) {
    return OneProduct("mma.sync.aligned.m16n8k32.row.col.f32." + types + ".f32", 4, 2, a, b, 0);
  };
  EXPECT_EQ(eights("e4m3.e4m3", 0x7e, 0x38), std::bit_cast<uint32_t>(448.0f));
  EXPECT_EQ(eights("e4m3.e4m3", 0x01, 0x38), std::bit_cast<uint32_t>(0x1p-9f));
  EXPECT_EQ(eights("e4m3.e4m3", 0xff, 0x38), 0x7fffffffu);
  EXPECT_EQ(eights("e5m2.e5m2", 0x7c, 0x3c), 0x7f800000u);
  EXPECT_EQ(eights("e5m2.e4m3", 0x01, 0xb8), std::bit_cast<uint32_t>(-0x1p-16f));
}

// The layout of wmma fragments is open, so load, multiply and store are tested as one: D = A B + C.
TEST(IsaMatrix, WmmaOfEveryShapeLayoutAndType) {
  for (const auto& [m, n] : {std::pair(16, 16), std::pair(32, 8), std::pair(8, 32)}) {
    for (const char* space : {"", ".global"}) {
      for (const bool half : {false, true}) {
        for (const int layout : {0, 1, 2, 3}) {
          const bool a_row = layout & 1;
          const bool b_row = layout & 2;
          const std::string shape = fmt::format("m{}n{}k16", m, n);
          SCOPED_TRACE(fmt::format("{}{} {} {}", shape, space, half ? "f16" : "f32", layout));
          Rng rng(static_cast<uint64_t>(m));
          // A and B as halves, then C and room for D as floats or halves.
          const size_t c_bytes = static_cast<size_t>(m * n) * (half ? 2 : 4);
          const size_t b_at = static_cast<size_t>(m) * 32;
          const size_t c_at = b_at + static_cast<size_t>(n) * 32;
          std::vector<uint8_t> data(c_at + 2 * c_bytes, 0);
          std::vector<int> a(m * 16), b(16 * n), c(m * n);
          const auto put = [&](size_t at, size_t index, int value, bool as_half) {
            const uint32_t bits = as_half ? FloatToHalfBits(static_cast<float>(value))
                                          : std::bit_cast<uint32_t>(static_cast<float>(value));
            std::memcpy(&data[at + index * (as_half ? 2 : 4)], &bits, as_half ? 2 : 4);
          };
          const auto fill = [&](std::vector<int>& matrix, int rows, int columns, size_t at, bool row_major,
                                bool as_half) {
            for (int i = 0; i < rows; ++i) {
              for (int j = 0; j < columns; ++j) {
                matrix[i * columns + j] = static_cast<int>(rng.Below(9)) - 4;
                put(at, static_cast<size_t>(row_major ? i * columns + j : j * rows + i),
                    matrix[i * columns + j], as_half);
              }
            }
          };
          fill(a, m, 16, 0, a_row, true);
          fill(b, 16, n, b_at, b_row, true);
          fill(c, m, n, c_at, a_row, half);
          const char* cd = half ? "f16" : "f32";
          const char* rows[] = {"col", "row"};
          const std::string eight = "{%r8, %r9, %r10, %r11, %r12, %r13, %r14, %r15}";
          const std::string eight_b = "{%r16, %r17, %r18, %r19, %r20, %r21, %r22, %r23}";
          const std::string result =
              half ? "{%r24, %r25, %r26, %r27}" : "{%r24, %r25, %r26, %r27, %r28, %r29, %r30, %r31}";
          const std::string body =
              fmt::format("add.s64 %l2, %l1, {};\nadd.s64 %l3, %l1, {};\nadd.s64 %l4, %l1, {};\n", b_at, c_at,
                          c_at + c_bytes) +
              fmt::format("wmma.load.a.sync.aligned.{}.{}{}.f16 {}, [%l1], {};\n", rows[a_row], shape, space,
                          eight, a_row ? 16 : m) +
              fmt::format("wmma.load.b.sync.aligned.{}.{}{}.f16 {}, [%l2], {};\n", rows[b_row], shape, space,
                          eight_b, b_row ? n : 16) +
              fmt::format("wmma.load.c.sync.aligned.{}.{}{}.{} {}, [%l3];\n", rows[a_row], shape, space, cd,
                          result) +
              fmt::format("wmma.mma.sync.aligned.{0}.{1}.{2}.{3}.{3} {4}, {5}, {6}, {4};\n", rows[a_row],
                          rows[b_row], shape, cd, result, eight, eight_b) +
              fmt::format("wmma.store.d.sync.aligned.{}.{}{}.{} [%l4], {}, {};\nmov.u32 %r1, 0;\n",
                          rows[b_row], shape, space, cd, result, b_row ? n : m);
          const Module module = Module::Parse(OneWarp(body, 1));
          Memory memory;
          const uint64_t out = memory.Allocate(128, "out");
          const uint64_t in = Upload(memory, data, "in");
          LaunchOptions options;
          options.lines = OpcodeLogWanted();
          const LaunchReport report = Launch(memory, module, "k", {1}, {32}, 0, Args(out, in), options);
          LogOpcodes(report);
          EXPECT_EQ(Text(report.hazards), "");
          memory.CopyOut(data.data(), in, data.size());
          for (int i = 0; i < m; ++i) {
            for (int j = 0; j < n; ++j) {
              int sum = c[i * n + j];
              for (int k = 0; k < 16; ++k) sum += a[i * 16 + k] * b[k * n + j];
              const size_t index = static_cast<size_t>(b_row ? i * n + j : j * m + i);
              uint32_t bits = 0;
              std::memcpy(&bits, &data[c_at + c_bytes + index * (half ? 2 : 4)], half ? 2 : 4);
              const float found =
                  half ? HalfBitsToFloat(static_cast<uint16_t>(bits)) : std::bit_cast<float>(bits);
              ASSERT_EQ(found, static_cast<float>(sum)) << i << " " << j;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace vqllm::ptx::test
