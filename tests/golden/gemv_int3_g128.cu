// Made by: vqllm codegen --op gemv --format 'int3-g128' --m 1 --n 4096 --k 11008 --gpu rtx4090
// Do not edit: change the plan and make it again.
//
// y[m][n] = sum over k of x[m][k] * scale * decode(codes)[n][k]
// Format {"name":"int3-g128","kind":"int","bits":3,"symmetric":false,"scale":"group","group":128}, 3.148 bits a weight. Written for rtx4090 (sm_89).
//
// Plan
//   compute   dequant_fma, fusion none
//   entries   none
//   block     8 warps: 8 over outputs x 1 over k; 32 outputs, 1 tokens
//   k         1 steps, 1 a block; 1 block(s) share an output
//   budget    200 registers a thread, 30800 bytes of shared memory, 1 blocks an SM
//   launch    gemv<<<(128, 1, 1), 256, 30800>>>
//
// Codes, 16512 KiB: a warp reads a row tile of 4 rows; columns of one group (32 lanes, pieces of 32 columns):
//   |lane 0: 0..31|lane 1: 32..63| ... |lane 31: ..1023| then lane 0: 1024..1055, and so on, 2 times
// words of a lane and row: 6 (2 units of 96 bits, 0 spare bits)
#include <cuda_fp16.h>

constexpr int kN = 4096;   // outputs, rows of W
constexpr int kK = 11008;  // inputs, columns of W
constexpr int kThreads = 256;

// Codes: [row tile][group of chunks][row slot][plane][row lane][column lane][vector of 2 words].
constexpr int kRowSlots = 4;  // rows of codes that a lane holds at once
constexpr int kRowLanes = 1;
constexpr int kColumnLanes = 32;
constexpr int kPlanes = 3;      // loads of a chunk
constexpr int kChunkWords = 6;  // 32-bit words of a chunk
constexpr int kPieces = 2;      // of a chunk
constexpr int kPieceUnits = 1;
constexpr int kUnitColumns = 32;
constexpr int kPieceColumns = kPieceUnits * kUnitColumns;
constexpr int kPairs = 16;                                      // registers of a decoded unit, two values each
constexpr int kChunkVectors = kRowSlots * kPlanes * kRowLanes;  // of all rows of a tile
constexpr int kTileVectors = 2064;

// The reduction runs in steps of kStepChunks chunks a row.
constexpr int kSteps = 1;
constexpr int kStepGroups = 6;
constexpr int kStepChunks = kStepGroups * kColumnLanes;
constexpr int kStepColumns = kStepChunks * kPieces * kPieceColumns;
constexpr int kChunks = 172;  // of a row

// Activations in shared memory, pieces kPiecePitch apart so that neighbouring lanes meet different banks.
constexpr int kTokens = 1;  // of a block
constexpr int kPiecePitch = 40;
constexpr int kTokenPitch = 15400;
constexpr int kFragmentUnits = 1;  // units whose activations are read at once
constexpr int kFragmentColumns = kFragmentUnits * kUnitColumns;
constexpr int kStepPieces = kStepChunks * kPieces;

static_assert(kFragmentColumns % 4 == 0, "activations are read in vectors of four or eight");
static_assert(kPieceUnits % kFragmentUnits == 0, "a piece is whole fragments");
static_assert(kK % 8 == 0, "a row of x is whole vectors");

// Two fp16 values in one register.
__device__ __forceinline__ __half2 AsHalf2(unsigned pair) { return *reinterpret_cast<const __half2*>(&pair); }
__device__ __forceinline__ unsigned AsPair(__half2 value) { return *reinterpret_cast<const unsigned*>(&value); }

__device__ __forceinline__ unsigned SubPairs(unsigned a, unsigned b) {
  return AsPair(__hsub2(AsHalf2(a), AsHalf2(b)));
}

// Both fp16 values of a register as fp32; exact.
__device__ __forceinline__ float2 HalfFloats(unsigned pair) { return __half22float2(AsHalf2(pair)); }

// (word & mask) | 0x64006400 in one lop3: small integers in the low bits of two fp16 values that read 1024 + integer.
__device__ __forceinline__ unsigned MaskedHalf(unsigned word, unsigned mask) {
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(0x64006400u));
  return result;
}

// Sum over `lanes` neighbouring lanes (a power of two), the same bits in each of them.
__device__ __forceinline__ float SumLanes(float value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// One unit: 32 codes of 3 bits, packed so that a mask gives two neighbours as 1024 + code.
__device__ __forceinline__ void DecodeUnit(const unsigned* words, int unit, unsigned offset,
                                           unsigned (&pairs)[16]) {
  #pragma unroll
  for (int j = 0; j < 15; ++j) {
    pairs[j] = SubPairs(MaskedHalf(words[3 * unit + j / 5] >> 3 * (j % 5), 0x00070007u), offset);
  }
  // The last pair: one bit of each word, at 15 and 31.
  const unsigned last = (words[3 * unit] >> 15 & 0x00010001u) | (words[3 * unit + 1] >> 14 & 0x00020002u) |
                        (words[3 * unit + 2] >> 13 & 0x00040004u);
  pairs[15] = SubPairs(last | 0x64006400u, offset);
}

// The scale (low half) and 1024 + zero point (high half) of weight (row, column); padding reads the last one.
// Scales: [row tile][group of 128 columns][row of the tile].
__device__ __forceinline__ unsigned ScaleAt(const unsigned* __restrict__ scales, int row, int column) {
  const int inside = min(row, kN - 1);
  const int group = min(column, kK - 1) / 128;
  return __ldg(scales + (inside / 4 * 86 + group) * 4 + inside % 4);
}

// Copies kStepColumns activations of each token, from `first_column` on; zeros behind the last column.
__device__ __forceinline__ void StageActivations(const __half* __restrict__ x, __half* to_shared,
                                                 int first_column, int first_token) {
  for (int i = threadIdx.x; i < kTokens * (kStepColumns / 8); i += kThreads) {
    const int t = i / (kStepColumns / 8);
    const int c = i % (kStepColumns / 8) * 8;
    const bool inside = first_column + c < kK;
    const __half* from = x + (first_token + t) * static_cast<long long>(kK) + first_column + c;
    __half* to = to_shared + t * kTokenPitch + c / kPieceColumns * kPiecePitch + c % kPieceColumns;
    *reinterpret_cast<uint4*>(to) = inside ? __ldg(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
  }
  // Lanes without a chunk multiply with the zeros of one more piece.
  for (int i = threadIdx.x; i < kTokens * kPieceColumns; i += kThreads) {
    to_shared[i / kPieceColumns * kTokenPitch + kStepPieces * kPiecePitch + i % kPieceColumns] = __float2half_rn(0.0f);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
gemv(const uint2* __restrict__ codes, const unsigned* __restrict__ scales, const __half* __restrict__ x,
     __half* __restrict__ y) {
  extern __shared__ __align__(16) unsigned char shared[];
  __half* x_shared = reinterpret_cast<__half*>(shared);
  const int column_lane = threadIdx.x % 32;
  const int tile = blockIdx.x * 8 + threadIdx.x / 32;  // a warp works on one row tile
  const int first_row = tile * kRowSlots;
  const int first_token = blockIdx.y * kTokens;
  const uint2* tile_codes = codes + static_cast<long long>(tile) * kTileVectors;

  // 1. The codebook.
  // There is none.

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
      const int lanes = min(kColumnLanes, kChunks - first_chunk - g * kColumnLanes);
      const bool active = column_lane < lanes;
      unsigned words[kRowSlots][kChunkWords];
      const uint2* at = tile_codes + (first_chunk + g * kColumnLanes) * kChunkVectors + column_lane;
      #pragma unroll
      for (int r = 0; r < kRowSlots; ++r) {
        #pragma unroll
        for (int p = 0; p < kPlanes; ++p) {
          const uint2 vector = active ? __ldcs(at + (r * kPlanes + p) * lanes) : make_uint2(0, 0);
          words[r][2 * p] = vector.x;
          words[r][2 * p + 1] = vector.y;
        }
      }
      #pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const int piece = active ? g * kColumnLanes * kPieces + p * lanes + column_lane : kStepPieces;
        const int column = first_column + piece * kPieceColumns;
        const __half* x_at = x_shared + piece * kPiecePitch;
        float part[kRowSlots][kTokens] = {};
        float piece_scales[kRowSlots];
        unsigned offsets[kRowSlots];
        #pragma unroll
        for (int r = 0; r < kRowSlots; ++r) {
          const int row = first_row + r;
          const unsigned scale_zero = ScaleAt(scales, row, column);
          const float scale = HalfFloats(scale_zero).x;
          const unsigned offset = __byte_perm(scale_zero, scale_zero, 0x3232);
          piece_scales[r] = scale;
          offsets[r] = offset;
        }
        unsigned xs[kTokens][kFragmentColumns / 2];
        #pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          #pragma unroll
          for (int i = 0; i < kFragmentColumns / 8; ++i) {
            const uint4 some = *reinterpret_cast<const uint4*>(x_at + t * kTokenPitch + 8 * i);
            xs[t][4 * i] = some.x;
            xs[t][4 * i + 1] = some.y;
            xs[t][4 * i + 2] = some.z;
            xs[t][4 * i + 3] = some.w;
          }
        }
        #pragma unroll
        for (int r = 0; r < kRowSlots; ++r) {
          unsigned pairs[kPairs];
          DecodeUnit(words[r], p, offsets[r], pairs);
          #pragma unroll
          for (int i = 0; i < kPairs; ++i) {
            const float2 w = HalfFloats(pairs[i]);
            #pragma unroll
            for (int t = 0; t < kTokens; ++t) {
              const float2 near = HalfFloats(xs[t][i]);
              part[r][t] = fmaf(w.x, near.x, part[r][t]);
              part[r][t] = fmaf(w.y, near.y, part[r][t]);
            }
          }
        }
        #pragma unroll
        for (int r = 0; r < kRowSlots; ++r) {
          #pragma unroll
          for (int t = 0; t < kTokens; ++t) acc[r][t] = fmaf(piece_scales[r], part[r][t], acc[r][t]);
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
        y[token * static_cast<long long>(kN) + row] = __float2half_rn(sum);
      }
    }
  }
}
