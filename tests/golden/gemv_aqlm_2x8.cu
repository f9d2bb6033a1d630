// Made by: vqllm codegen --op gemv --format 'aqlm-2x8' --m 1 --n 4096 --k 4096 --gpu a100
// Do not edit: change the plan and make it again.
//
// y[m][n] = sum over k of x[m][k] * scale * decode(codes)[n][k]
// Format {"name":"aqlm-2x8","kind":"table","subvector":8,"entries":[256,256],"axis":"in","scope":{"kind":"tensor"},"scale":"per-output"}, 2.008 bits a weight. Written for a100 (sm_80).
//
// Plan
//   compute   lookup_table, fusion none
//   entries   256 in global memory; 256 in global memory
//   block     8 warps: 8 over outputs x 1 over k; 1024 outputs, 1 tokens
//   k         26 steps, 1 a block; 26 block(s) share an output
//   budget    152 registers a thread, 41280 bytes of shared memory, 1 blocks an SM
//   launch    gemv<<<(4, 1, 26), 256, 41280>>>
//   launch    sum_partials<<<(16, 1, 1), 256, 0>>>
//
// Codes, 4160 KiB: a warp reads a row tile of 128 rows; columns of one group (1 lane, pieces of 8 columns):
//   |lane 0: 0..7| then lane 0: 8..15, and so on, 20 times
// words of a lane and row: 10 (20 units of 16 bits, 0 spare bits)
#include <cuda_fp16.h>

constexpr int kN = 4096;  // outputs, rows of W
constexpr int kK = 4096;  // inputs, columns of W
constexpr int kThreads = 256;

// Codes: [row tile][group of chunks][row slot][plane][row lane][column lane][vector of 2 words].
constexpr int kRowSlots = 4;  // rows of codes that a lane holds at once
constexpr int kRowLanes = 32;
constexpr int kColumnLanes = 1;
constexpr int kPlanes = 5;       // loads of a chunk
constexpr int kChunkWords = 10;  // 32-bit words of a chunk
constexpr int kPieces = 20;      // of a chunk
constexpr int kPieceUnits = 1;
constexpr int kUnitColumns = 8;
constexpr int kPieceColumns = kPieceUnits * kUnitColumns;
constexpr int kPairs = 4;                                       // registers of a decoded unit, two values each
constexpr int kChunkVectors = kRowSlots * kPlanes * kRowLanes;  // of all rows of a tile
constexpr int kTileVectors = 16640;

// The reduction runs in steps of kStepChunks chunks a row.
constexpr int kSteps = 26;
constexpr int kBlockSteps = 1;  // of one block, of 26 that share outputs
constexpr int kStepGroups = 1;
constexpr int kStepChunks = kStepGroups * kColumnLanes;
constexpr int kStepColumns = kStepChunks * kPieces * kPieceColumns;

// Activations in shared memory, in their order: lanes that make a table read the same ones.
constexpr int kM = 1;       // tokens
constexpr int kTokens = 1;  // of a block
constexpr int kTokenPitch = 160;

// Tables: [subvector of a chunk][token][entry of all stages], the products of one chunk's columns.
constexpr int kUnitBits = 16;  // the codes of all stages of one subvector
constexpr int kSubvectors = kPieces * kPieceUnits;
constexpr int kTableEntries = 512;
constexpr int kTableBytes = 40960;  // before the activations

static_assert(kColumnLanes == 1, "a lane has rows of its own");
static_assert(kK % 8 == 0, "a row of x is whole vectors");

// `width` bits from bit `at` of a lane's words, none of which crosses a word. `at` is known once loops are unrolled.
__device__ __forceinline__ unsigned Bits(const unsigned* words, int at, int width) {
  return words[at / 32] >> (at % 32) & ((1u << width) - 1);
}

// Two fp16 values in one register.
__device__ __forceinline__ __half2 AsHalf2(unsigned pair) { return *reinterpret_cast<const __half2*>(&pair); }
__device__ __forceinline__ unsigned AsPair(__half2 value) { return *reinterpret_cast<const unsigned*>(&value); }

// Both fp16 values of a register as fp32; exact.
__device__ __forceinline__ float2 HalfFloats(unsigned pair) { return __half22float2(AsHalf2(pair)); }

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

// The products of all entries of one stage with the activations at `x_at`, of all tokens.
__device__ __forceinline__ void MakeTable(const uint4* __restrict__ codebook, int entries,
                                          const __half* x_at, float* table) {
  for (int e = threadIdx.x; e < entries; e += kThreads) {
    unsigned entry[kPairs];
    const uint4 some = __ldg(codebook + e);
    entry[0] = some.x;
    entry[1] = some.y;
    entry[2] = some.z;
    entry[3] = some.w;
    for (int s = 0; s < kSubvectors; ++s) {
      #pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const __half* near = x_at + t * kTokenPitch + s * kUnitColumns;
        float sum = 0;
        unsigned xs[kPairs];
        #pragma unroll
        for (int i = 0; i < 1; ++i) {
          const uint4 some = reinterpret_cast<const uint4*>(near)[i];
          xs[4 * i] = some.x;
          xs[4 * i + 1] = some.y;
          xs[4 * i + 2] = some.z;
          xs[4 * i + 3] = some.w;
        }
        #pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          const float2 c = HalfFloats(entry[i]);
          const float2 a = HalfFloats(xs[i]);
          sum = fmaf(c.x, a.x, sum);
          sum = fmaf(c.y, a.y, sum);
        }
        table[(s * kTokens + t) * kTableEntries + e] = sum;
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
gemv(const uint2* __restrict__ codes, const uint4* __restrict__ codebooks,
     const __half* __restrict__ scales, const __half* __restrict__ x, float* __restrict__ partial) {
  extern __shared__ __align__(16) unsigned char shared[];
  float* table = reinterpret_cast<float*>(shared);
  __half* x_shared = reinterpret_cast<__half*>(shared + kTableBytes);
  const int row_lane = threadIdx.x % 32;
  const int tile = blockIdx.x * 8 + threadIdx.x / 32;  // a warp works on one row tile
  const int first_row = tile * kRowSlots * kRowLanes;
  const int first_token = blockIdx.y * kTokens;
  const uint2* tile_codes = codes + static_cast<long long>(tile) * kTileVectors;

  float acc[kRowSlots][kTokens] = {};
  const int first_step = blockIdx.z * kBlockSteps;
  const int last_step = min(first_step + kBlockSteps, kSteps);
  for (int step = first_step; step < last_step; ++step) {
    // 1. The activations of this step; of the last ones all tables are made.
    const int first_chunk = step * kStepChunks;
    const int first_column = step * kStepColumns;
    StageActivations(x, x_shared, first_column, first_token);
    for (int g = 0; g < kStepGroups; ++g) {
      // 2. Codes of all rows, under way while the table is made.
      unsigned words[kRowSlots][kChunkWords];
      const uint2* at = tile_codes + (first_chunk + g) * kChunkVectors + row_lane;
      #pragma unroll
      for (int r = 0; r < kRowSlots; ++r) {
        #pragma unroll
        for (int p = 0; p < kPlanes; ++p) {
          const uint2 vector = __ldcs(at + (r * kPlanes + p) * kRowLanes);
          words[r][2 * p] = vector.x;
          words[r][2 * p + 1] = vector.y;
        }
      }
      __syncthreads();  // the activations are there, and all warps are done with the last table

      // 3. The table of this chunk's columns.
      const __half* x_at = x_shared + g * kPieces * kPieceColumns;
      MakeTable(codebooks, 256, x_at, table);
      MakeTable(codebooks + 256, 256, x_at, table + 256);
      __syncthreads();

      // 4. A load and an add for each code.
      #pragma unroll
      for (int r = 0; r < kRowSlots; ++r) {
        #pragma unroll
        for (int s = 0; s < kSubvectors; ++s) {
          const unsigned code0 = Bits(words[r], s * kUnitBits, 8);
          const unsigned code1 = Bits(words[r], s * kUnitBits + 8, 8);
          #pragma unroll
          for (int t = 0; t < kTokens; ++t) {
            const float* products = table + (s * kTokens + t) * kTableEntries;
            acc[r][t] += products[code0];
            acc[r][t] += products[256 + code1];
          }
        }
      }
    }
  }

  // 5. Write.
  #pragma unroll
  for (int r = 0; r < kRowSlots; ++r) {
    const int row = first_row + r * kRowLanes + row_lane;
    #pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int token = first_token + t;
      float sum = acc[r][t];
      sum *= __half2float(scales[row]);
      partial[(blockIdx.z * kM + token) * static_cast<long long>(kN) + row] = sum;
    }
  }
}

// Adds the sums of the 26 blocks that share an output, in the order of k: the same bits at every run.
extern "C" __global__ void __launch_bounds__(256)
sum_partials(const float* __restrict__ partial, __half* __restrict__ y) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= kM * kN) return;
  float sum = 0;
  for (int s = 0; s < 26; ++s) sum += partial[s * static_cast<long long>(kM * kN) + i];
  y[i] = __float2half_rn(sum);
}
