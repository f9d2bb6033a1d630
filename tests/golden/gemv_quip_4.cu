// Made by: vqllm codegen --op gemv --format 'quip-4' --m 1 --n 4096 --k 4096 --gpu h100
// Do not edit: change the plan and make it again.
//
// y[m][n] = sum over k of x[m][k] * scale * decode(codes)[n][k]
// Format {"name":"quip-4","kind":"lattice","subvector":8,"entries":[65536,65536],"scale":"per-tensor","rotation":true}, 4.000 bits a weight. Written for h100 (sm_90).
//
// Plan
//   compute   dequant_fma, fusion none
//   entries   256 in shared memory x 32 copies
//   block     8 warps: 8 over outputs x 1 over k; 32 outputs, 1 tokens
//   k         1 steps, 1 a block; 1 block(s) share an output
//   budget    128 registers a thread, 40960 bytes of shared memory, 1 blocks an SM
//   launch    gemv<<<(128, 1, 1), 256, 40960>>>
//
// Codes, 8192 KiB: a warp reads a row tile of 4 rows; columns of one group (32 lanes, pieces of 8 columns):
//   |lane 0: 0..7|lane 1: 8..15| ... |lane 31: ..255| then lane 0: 256..263, and so on, 4 times
// words of a lane and row: 4 (4 units of 32 bits, 0 spare bits)
#include <cuda_fp16.h>

constexpr int kN = 4096;  // outputs, rows of W
constexpr int kK = 4096;  // inputs, columns of W
constexpr int kThreads = 256;

// Codes: [row tile][group of chunks][row slot][plane][row lane][column lane][vector of 4 words].
constexpr int kRowSlots = 4;  // rows of codes that a lane holds at once
constexpr int kRowLanes = 1;
constexpr int kColumnLanes = 32;
constexpr int kPlanes = 1;      // loads of a chunk
constexpr int kChunkWords = 4;  // 32-bit words of a chunk
constexpr int kPieces = 4;      // of a chunk
constexpr int kPieceUnits = 1;
constexpr int kUnitColumns = 8;
constexpr int kPieceColumns = kPieceUnits * kUnitColumns;
constexpr int kPairs = 4;                                       // registers of a decoded unit, two values each
constexpr int kChunkVectors = kRowSlots * kPlanes * kRowLanes;  // of all rows of a tile
constexpr int kTileVectors = 512;

// The reduction runs in steps of kStepChunks chunks a row.
constexpr int kSteps = 1;
constexpr int kStepGroups = 4;
constexpr int kStepChunks = kStepGroups * kColumnLanes;
constexpr int kStepColumns = kStepChunks * kPieces * kPieceColumns;

// Activations in shared memory, pieces kPiecePitch apart so that neighbouring lanes meet different banks.
constexpr int kTokens = 1;  // of a block
constexpr int kPiecePitch = 8;
constexpr int kTokenPitch = 4096;
constexpr int kFragmentUnits = 1;  // units whose activations are read at once
constexpr int kFragmentColumns = kFragmentUnits * kUnitColumns;
constexpr int kCodebookBytes = 32768;  // before the activations

static_assert(kFragmentColumns % 4 == 0, "activations are read in vectors of four or eight");
static_assert(kPieceUnits % kFragmentUnits == 0, "a piece is whole fragments");
static_assert(kK % 8 == 0, "a row of x is whole vectors");

constexpr int kEntries = 256;  // vectors of absolute values, 4 bytes each
constexpr int kCopies = 32;    // of each entry in shared memory

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

// Sum over `lanes` neighbouring lanes (a power of two), the same bits in each of them.
__device__ __forceinline__ float SumLanes(float value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// Where the packed vectors are read from, and the factor of the second stage, twice as fp16.
struct Codebook {
  const unsigned* entries;
  unsigned factor;
};

// Copies the table into shared memory, each entry kCopies times; a barrier must follow.
__device__ __forceinline__ Codebook LoadCodebook(const unsigned* __restrict__ codebooks,
                                                 const float* __restrict__ factors, unsigned* shared) {
  Codebook book;
  for (int i = threadIdx.x; i < kEntries * kCopies; i += kThreads) {
    shared[i] = __ldg(codebooks + i / kCopies);
  }
  book.entries = shared + threadIdx.x % kCopies;
  book.factor = AsPair(__float2half2_rn(factors[1]));
  return book;
}

// One unit: eight weights, the second code refines the first.
__device__ __forceinline__ void DecodeUnit(const unsigned* words, int unit, const Codebook& book,
                                           unsigned (&pairs)[4]) {
  const unsigned codes = words[unit];
  unsigned fine[4];
  DecodeE8P(book.entries[(codes >> 8 & 0xff) * kCopies], codes & 0xff, pairs);
  DecodeE8P(book.entries[(codes >> 24) * kCopies], codes >> 16 & 0xff, fine);
  #pragma unroll
  for (int j = 0; j < 4; ++j) pairs[j] = FmaPairs(fine[j], book.factor, pairs[j]);
}

// Copies kStepColumns activations of each token, from `first_column` on; zeros behind the last column.
__device__ __forceinline__ void StageActivations(const __half* __restrict__ x, __half* to_shared,
                                                 int first_column, int first_token) {
  for (int i = threadIdx.x; i < kTokens * (kStepColumns / 8); i += kThreads) {
    const int t = i / (kStepColumns / 8);
    const int c = i % (kStepColumns / 8) * 8;
    const bool inside = first_column + c < kK;
    const __half* from = x + (first_token + t) * static_cast<long long>(kK) + first_column + c;
    __half* to = to_shared + t * kTokenPitch + c;
    *reinterpret_cast<uint4*>(to) = inside ? __ldg(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
gemv(const uint4* __restrict__ codes, const unsigned* __restrict__ codebooks,
     const float* __restrict__ factors, const __half* __restrict__ x, __half* __restrict__ y) {
  extern __shared__ __align__(16) unsigned char shared[];
  __half* x_shared = reinterpret_cast<__half*>(shared + kCodebookBytes);
  const int column_lane = threadIdx.x % 32;
  const int tile = blockIdx.x * 8 + threadIdx.x / 32;  // a warp works on one row tile
  const int first_row = tile * kRowSlots;
  const int first_token = blockIdx.y * kTokens;
  const uint4* tile_codes = codes + static_cast<long long>(tile) * kTileVectors;

  // 1. The codebook.
  const Codebook book = LoadCodebook(codebooks, factors, reinterpret_cast<unsigned*>(shared));

  float acc[kRowSlots][kTokens] = {};
  for (int step = 0; step < kSteps; ++step) {
    // 2. The activations of this step.
    const int first_chunk = step * kStepChunks;
    const int first_column = step * kStepColumns;
    __syncthreads();  // all warps are done with the last step's activations
    StageActivations(x, x_shared, first_column, first_token);
    __syncthreads();

    // 3. Codes of all rows, then unit after unit: decode and multiply.
    for (int g = 0; g < kStepGroups; ++g) {
      unsigned words[kRowSlots][kChunkWords];
      const uint4* at = tile_codes + (first_chunk + g * kColumnLanes) * kChunkVectors + column_lane;
      #pragma unroll
      for (int r = 0; r < kRowSlots; ++r) {
        #pragma unroll
        for (int p = 0; p < kPlanes; ++p) {
          const uint4 vector = __ldcs(at + (r * kPlanes + p) * kColumnLanes);
          words[r][4 * p] = vector.x;
          words[r][4 * p + 1] = vector.y;
          words[r][4 * p + 2] = vector.z;
          words[r][4 * p + 3] = vector.w;
        }
      }
      #pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const int piece = (g * kPieces + p) * kColumnLanes + column_lane;
        const __half* x_at = x_shared + piece * kPiecePitch;
        unsigned xs[kTokens][kFragmentColumns / 2];
        #pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const uint4 some = *reinterpret_cast<const uint4*>(x_at + t * kTokenPitch);
          xs[t][0] = some.x;
          xs[t][1] = some.y;
          xs[t][2] = some.z;
          xs[t][3] = some.w;
        }
        #pragma unroll
        for (int r = 0; r < kRowSlots; ++r) {
          unsigned pairs[kPairs];
          DecodeUnit(words[r], p, book, pairs);
          #pragma unroll
          for (int i = 0; i < kPairs; ++i) {
            const float2 w = HalfFloats(pairs[i]);
            #pragma unroll
            for (int t = 0; t < kTokens; ++t) {
              const float2 near = HalfFloats(xs[t][i]);
              acc[r][t] = fmaf(w.x, near.x, acc[r][t]);
              acc[r][t] = fmaf(w.y, near.y, acc[r][t]);
            }
          }
        }
      }
    }
  }

  // 4. Sum over the lanes of a row and write.
  #pragma unroll
  for (int r = 0; r < kRowSlots; ++r) {
    const int row = first_row + r;
    #pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int token = first_token + t;
      float sum = SumLanes(acc[r][t], kColumnLanes);
      if (column_lane == 0) {
        sum *= factors[0];
        y[token * static_cast<long long>(kN) + row] = __float2half_rn(sum);
      }
    }
  }
}
