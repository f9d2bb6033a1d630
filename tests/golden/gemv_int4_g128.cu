// Made by: vqllm codegen --op gemv --format 'int4-g128' --m 1 --n 4096 --k 4096 --gpu a100
// Do not edit: change the plan and make it again.
//
// y[m][n] = sum over k of x[m][k] * scale * decode(codes)[n][k]
// Format {"name":"int4-g128","kind":"int","bits":4,"symmetric":false,"scale":"group","group":128}, 4.156 bits a weight. Written for a100 (sm_80).
//
// Plan
//   compute   dequant_fma, fusion none
//   entries   none
//   block     4 warps: 4 over outputs x 1 over k; 8 outputs, 1 tokens
//   k         1 steps, 1 a block; 1 block(s) share an output
//   budget    104 registers a thread, 10240 bytes of shared memory, 3 blocks an SM
//   launch    gemv<<<(512, 1, 1), 128, 10240>>>
//
// Codes, 8192 KiB: a warp reads a row tile of 2 rows; columns of one group (32 lanes, pieces of 32 columns):
//   |lane 0: 0..31|lane 1: 32..63| ... |lane 31: ..1023|
// words of a lane and row: 4 (4 units of 32 bits, 0 spare bits)
#include <cuda_fp16.h>

constexpr int kN = 4096;  // outputs, rows of W
constexpr int kK = 4096;  // inputs, columns of W
constexpr int kThreads = 128;

// Codes: [row tile][group of chunks][row slot][plane][row lane][column lane][vector of 4 words].
constexpr int kRowSlots = 2;  // rows of codes that a lane holds at once
constexpr int kRowLanes = 1;
constexpr int kColumnLanes = 32;
constexpr int kPlanes = 1;      // loads of a chunk
constexpr int kChunkWords = 4;  // 32-bit words of a chunk
constexpr int kPieces = 1;      // of a chunk
constexpr int kPieceUnits = 4;
constexpr int kUnitColumns = 8;
constexpr int kPieceColumns = kPieceUnits * kUnitColumns;
constexpr int kPairs = 4;                                       // registers of a decoded unit, two values each
constexpr int kChunkVectors = kRowSlots * kPlanes * kRowLanes;  // of all rows of a tile
constexpr int kTileVectors = 256;

// The reduction runs in steps of kStepChunks chunks a row.
constexpr int kSteps = 1;
constexpr int kStepGroups = 4;
constexpr int kStepChunks = kStepGroups * kColumnLanes;
constexpr int kStepColumns = kStepChunks * kPieces * kPieceColumns;

// Activations in shared memory, pieces kPiecePitch apart so that neighbouring lanes meet different banks.
constexpr int kTokens = 1;  // of a block
constexpr int kPiecePitch = 40;
constexpr int kTokenPitch = 5120;
constexpr int kFragmentUnits = 1;  // units whose activations are read at once
constexpr int kFragmentColumns = kFragmentUnits * kUnitColumns;

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

// One unit: 8 codes of 4 bits, packed so that a mask gives two neighbours as 1024 + code.
__device__ __forceinline__ void DecodeUnit(const unsigned* words, int unit, unsigned offset,
                                           unsigned (&pairs)[4]) {
  #pragma unroll
  for (int j = 0; j < 4; ++j) {
    pairs[j] = SubPairs(MaskedHalf(words[unit] >> 4 * j, 0x000f000fu), offset);
  }
}

// The scale (low half) and 1024 + zero point (high half) of weight (row, column); padding reads the last one.
// Scales: [row tile][group of 128 columns][row of the tile].
__device__ __forceinline__ unsigned ScaleAt(const unsigned* __restrict__ scales, int row, int column) {
  const int inside = min(row, kN - 1);
  const int group = min(column, kK - 1) / 128;
  return __ldg(scales + (inside / 2 * 32 + group) * 2 + inside % 2);
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
}

extern "C" __global__ void __launch_bounds__(kThreads, 3)
gemv(const uint4* __restrict__ codes, const unsigned* __restrict__ scales, const __half* __restrict__ x,
     __half* __restrict__ y) {
  extern __shared__ __align__(16) unsigned char shared[];
  __half* x_shared = reinterpret_cast<__half*>(shared);
  const int column_lane = threadIdx.x % 32;
  const int tile = blockIdx.x * 4 + threadIdx.x / 32;  // a warp works on one row tile
  const int first_row = tile * kRowSlots;
  const int first_token = blockIdx.y * kTokens;
  const uint4* tile_codes = codes + static_cast<long long>(tile) * kTileVectors;

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
        #pragma unroll
        for (int f = 0; f < kPieceUnits / kFragmentUnits; ++f) {
          unsigned xs[kTokens][kFragmentColumns / 2];
          #pragma unroll
          for (int t = 0; t < kTokens; ++t) {
            const uint4 some = *reinterpret_cast<const uint4*>(x_at + t * kTokenPitch + f * kFragmentColumns);
            xs[t][0] = some.x;
            xs[t][1] = some.y;
            xs[t][2] = some.z;
            xs[t][3] = some.w;
          }
          #pragma unroll
          for (int r = 0; r < kRowSlots; ++r) {
            unsigned pairs[kPairs];
            DecodeUnit(words[r], p * kPieceUnits + f, offsets[r], pairs);
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
