// Made by: vqllm codegen --op dequant --format 'quip-2' --n 4096 --k 4096 --gpu rtx5090
// Do not edit: change the plan and make it again.
//
// w[n][k] = scale * decode(codes)[n][k]
// Format {"name":"quip-2","kind":"lattice","subvector":8,"entries":[65536],"scale":"per-tensor","rotation":true}, 2.000 bits a weight. Written for rtx5090 (sm_120).
//
// Plan
//   compute   store, fusion none
//   entries   256 in global memory
//   block     8 warps: 8 over outputs x 1 over k; 8 outputs
//   k         4 steps, 1 a block; 4 block(s) share an output
//   budget    88 registers a thread, 0 bytes of shared memory, 1 blocks an SM
//   launch    dequant<<<(512, 1, 4), 256, 0>>>
//
// Codes, 4096 KiB: a warp reads a row tile of 1 rows; columns of one group (32 lanes, pieces of 8 columns):
//   |lane 0: 0..7|lane 1: 8..15| ... |lane 31: ..255| then lane 0: 256..263, and so on, 4 times
// words of a lane and row: 2 (4 units of 16 bits, 0 spare bits)
#include <cuda_fp16.h>

constexpr int kN = 4096;  // outputs, rows of W
constexpr int kK = 4096;  // inputs, columns of W
constexpr int kThreads = 256;

// Codes: [row tile][group of chunks][row slot][plane][row lane][column lane][vector of 2 words].
constexpr int kRowSlots = 1;  // rows of codes that a lane holds at once
constexpr int kRowLanes = 1;
constexpr int kColumnLanes = 32;
constexpr int kPlanes = 1;      // loads of a chunk
constexpr int kChunkWords = 2;  // 32-bit words of a chunk
constexpr int kPieces = 4;      // of a chunk
constexpr int kPieceUnits = 1;
constexpr int kUnitColumns = 8;
constexpr int kPieceColumns = kPieceUnits * kUnitColumns;
constexpr int kPairs = 4;                                       // registers of a decoded unit, two values each
constexpr int kChunkVectors = kRowSlots * kPlanes * kRowLanes;  // of all rows of a tile
constexpr int kTileVectors = 128;

// The reduction runs in steps of kStepChunks chunks a row.
constexpr int kSteps = 4;
constexpr int kBlockSteps = 1;  // of one block, of 4 that share outputs
constexpr int kStepGroups = 1;
constexpr int kStepChunks = kStepGroups * kColumnLanes;
constexpr int kStepColumns = kStepChunks * kPieces * kPieceColumns;

// Two fp16 values in one register.
__device__ __forceinline__ __half2 AsHalf2(unsigned pair) { return *reinterpret_cast<const __half2*>(&pair); }
__device__ __forceinline__ unsigned AsPair(__half2 value) { return *reinterpret_cast<const unsigned*>(&value); }

__device__ __forceinline__ unsigned AddPairs(unsigned a, unsigned b) {
  return AsPair(__hadd2(AsHalf2(a), AsHalf2(b)));
}

__device__ __forceinline__ unsigned FmaPairs(unsigned a, unsigned b, unsigned c) {
  return AsPair(__hfma2(AsHalf2(a), AsHalf2(b), AsHalf2(c)));
}

// Both fp16 values of a register as fp32; exact.
__device__ __forceinline__ float2 HalfFloats(unsigned pair) { return __half22float2(AsHalf2(pair)); }

// (word & mask) | 0x64006400 in one lop3: small integers in the low bits of two fp16 values that read 1024 + integer.
__device__ __forceinline__ unsigned MaskedHalf(unsigned word, unsigned mask) {
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(0x64006400u));
  return result;
}

// Eight values of E8P (QuIP#, arXiv 2402.04396): `packed` holds 2 * |value| + 8 in nibbles and `signs` the sign
// bits, both in the order 0 2 4 6 1 3 5 7, so that one shift and one mask give a pair of neighbours. Bit 0 of the
// signs is flipped where their parity is odd; the parity chooses the shift of + or - 1/4.
__device__ __forceinline__ void DecodeE8P(unsigned packed, unsigned signs, unsigned (&pairs)[4]) {
  const unsigned parity = __popc(signs) & 1;
  signs ^= parity;
  const unsigned spread = (signs & 0xf) | (signs & 0xf0) << 12;  // signs of even values low, of odd ones high
  const unsigned shift = 0x34003400u | parity * 0x80008000u;     // +1/4 or -1/4, twice
  #pragma unroll
  for (int j = 0; j < 4; ++j) {
    // (1024 + nibble) / 2 - 516 = (nibble - 8) / 2, exact in fp16.
    const unsigned magnitude = FmaPairs(MaskedHalf(packed >> 4 * j, 0x000f000fu), 0x38003800u, 0xe008e008u);
    pairs[j] = AddPairs(magnitude ^ (spread >> j & 0x00010001u) << 15, shift);
  }
}

// Where the packed vectors are read from.
struct Codebook {
  const unsigned* entries;
};

// The table stays in global memory, whence the caches serve it.
__device__ __forceinline__ Codebook LoadCodebook(const unsigned* __restrict__ codebooks) {
  Codebook book;
  book.entries = codebooks;
  return book;
}

// One unit: eight weights.
__device__ __forceinline__ void DecodeUnit(const unsigned* words, int unit, const Codebook& book,
                                           unsigned (&pairs)[4]) {
  const unsigned code = words[unit / 2] >> (unit % 2 * 16);
  DecodeE8P(__ldg(book.entries + (code >> 8 & 0xff)), code & 0xff, pairs);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
dequant(const uint2* __restrict__ codes, const unsigned* __restrict__ codebooks,
        const float* __restrict__ factors, __half* __restrict__ w) {
  const int column_lane = threadIdx.x % 32;
  const int tile = blockIdx.x * 8 + threadIdx.x / 32;  // a warp works on one row tile
  const int first_row = tile * kRowSlots;
  const uint2* tile_codes = codes + static_cast<long long>(tile) * kTileVectors;

  // 1. The codebook.
  const Codebook book = LoadCodebook(codebooks);

  const int first_step = blockIdx.z * kBlockSteps;
  const int last_step = min(first_step + kBlockSteps, kSteps);
  for (int step = first_step; step < last_step; ++step) {
    const int first_chunk = step * kStepChunks;
    const int first_column = step * kStepColumns;
    for (int g = 0; g < kStepGroups; ++g) {
      // 2. Codes of all rows; lanes behind the last chunk read none.
      unsigned words[kRowSlots][kChunkWords];
      const uint2* at = tile_codes + (first_chunk + g * kColumnLanes) * kChunkVectors + column_lane;
      #pragma unroll
      for (int r = 0; r < kRowSlots; ++r) {
        #pragma unroll
        for (int p = 0; p < kPlanes; ++p) {
          const uint2 vector = __ldcs(at + (r * kPlanes + p) * kColumnLanes);
          words[r][2 * p] = vector.x;
          words[r][2 * p + 1] = vector.y;
        }
      }

      // 3. Decode and write unit after unit.
      #pragma unroll
      for (int r = 0; r < kRowSlots; ++r) {
        const int row = first_row + r;
        #pragma unroll
        for (int u = 0; u < kPieces * kPieceUnits; ++u) {
          const int piece = g * kColumnLanes * kPieces + u / kPieceUnits * kColumnLanes + column_lane;
          const int column = first_column + piece * kPieceColumns + u % kPieceUnits * kUnitColumns;
          const float scale = factors[0];
          unsigned pairs[kPairs];
          DecodeUnit(words[r], u, book, pairs);
          #pragma unroll
          for (int i = 0; i < kPairs; ++i) {
            const float2 two = HalfFloats(pairs[i]);
            if (row < kN && column + 2 * i < kK) {
              *reinterpret_cast<__half2*>(w + row * static_cast<long long>(kK) + column + 2 * i) =
                  __floats2half2_rn(scale * two.x, scale * two.y);
            }
          }
        }
      }
    }
  }
}
