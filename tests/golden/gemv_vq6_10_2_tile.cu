// Made by: vqllm codegen --op gemv --format 'VQ<6,10,2>-tile96x192' --m 1 --n 384 --k 768 --gpu a100
// Do not edit: change the plan and make it again.
//
// y[m][n] = sum over k of x[m][k] * scale * decode(codes)[n][k]
// Format {"name":"VQ<6,10,2>-tile96x192","kind":"table","subvector":6,"entries":[1024,1024],"axis":"in","scope":{"kind":"tile","rows":96,"cols":192}}, 14.000 bits a weight. Written for a100 (sm_80).
//
// Plan
//   compute   dequant_fma, fusion none
//   entries   1024 in global memory; 1024 in global memory
//   block     3 warps: 3 over outputs x 1 over k; 6 outputs, 1 tokens
//   k         4 steps, 1 a block; 4 block(s) share an output
//   budget    104 registers a thread, 384 bytes of shared memory, 4 blocks an SM
//   launch    gemv<<<(64, 1, 4), 96, 384>>>
//   launch    sum_partials<<<(2, 1, 1), 256, 0>>>
//
// Codes, 192 KiB: a warp reads a row tile of 2 rows; columns of one group (16 lanes, pieces of 12 columns):
//   |lane 0: 0..11|lane 1: 12..23| ... |lane 15: ..191|
// words of a lane and row: 2 (2 units of 20 bits, 24 spare bits)
#include <cuda_fp16.h>

constexpr int kN = 384;  // outputs, rows of W
constexpr int kK = 768;  // inputs, columns of W
constexpr int kThreads = 96;

// Codes: [row tile][segment][group of chunks][row slot][plane][row lane][column lane][vector of 2 words].
constexpr int kRowSlots = 1;  // rows of codes that a lane holds at once
constexpr int kRowLanes = 2;
constexpr int kColumnLanes = 16;
constexpr int kPlanes = 1;      // loads of a chunk
constexpr int kChunkWords = 2;  // 32-bit words of a chunk
constexpr int kPieces = 1;      // of a chunk
constexpr int kPieceUnits = 2;
constexpr int kUnitColumns = 6;
constexpr int kPieceColumns = kPieceUnits * kUnitColumns;
constexpr int kPairs = 3;                                       // registers of a decoded unit, two values each
constexpr int kChunkVectors = kRowSlots * kPlanes * kRowLanes;  // of all rows of a tile
constexpr int kTileVectors = 128;

// The reduction runs in steps of kStepChunks chunks a row.
constexpr int kSteps = 4;
constexpr int kBlockSteps = 1;  // of one block, of 4 that share outputs
constexpr int kStepGroups = 1;
constexpr int kStepChunks = kStepGroups * kColumnLanes;
constexpr int kStepColumns = kStepChunks * kPieces * kPieceColumns;
constexpr int kChunks = 16;  // of a row in a segment, which has a codebook of its own
constexpr int kSegmentSteps = 1;
constexpr int kSegmentColumns = 192;

// Activations in shared memory, pieces kPiecePitch apart so that neighbouring lanes meet different banks.
constexpr int kM = 1;       // tokens
constexpr int kTokens = 1;  // of a block
constexpr int kPiecePitch = 12;
constexpr int kTokenPitch = 192;
constexpr int kFragmentUnits = 2;  // units whose activations are read at once
constexpr int kFragmentColumns = kFragmentUnits * kUnitColumns;

static_assert(kFragmentColumns % 4 == 0, "activations are read in vectors of four or eight");
static_assert(kPieceUnits % kFragmentUnits == 0, "a piece is whole fragments");
static_assert(kK % 4 == 0, "a row of x is whole vectors");

constexpr int kUnitBits = 20;  // the codes of all stages of one subvector

// `width` bits from bit `at` of a lane's words; they may cross into the next word. `at` is known once loops are
// unrolled, so the branch is decided by the compiler.
__device__ __forceinline__ unsigned Bits(const unsigned* words, int at, int width) {
  const int shift = at % 32;
  unsigned value = words[at / 32] >> shift;
  if (shift + width > 32) value = __funnelshift_r(words[at / 32], words[at / 32 + 1], shift);
  return value & ((1u << width) - 1);
}

// Two fp16 values in one register.
__device__ __forceinline__ __half2 AsHalf2(unsigned pair) { return *reinterpret_cast<const __half2*>(&pair); }
__device__ __forceinline__ unsigned AsPair(__half2 value) { return *reinterpret_cast<const unsigned*>(&value); }

__device__ __forceinline__ unsigned AddPairs(unsigned a, unsigned b) {
  return AsPair(__hadd2(AsHalf2(a), AsHalf2(b)));
}

// Both fp16 values of a register as fp32; exact.
__device__ __forceinline__ float2 HalfFloats(unsigned pair) { return __half22float2(AsHalf2(pair)); }

// Sum over `lanes` neighbouring lanes (a power of two), the same bits in each of them.
__device__ __forceinline__ float SumLanes(float value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// Where the entries of each stage are read from.
struct Codebook {
  const uint4* global0;
  const uint4* global1;
};

// No entry is copied: the caches serve them.
__device__ __forceinline__ Codebook LoadCodebook(const uint4* __restrict__ codebooks, int index) {
  Codebook book;
  const uint4* from0 = codebooks + static_cast<long long>(index) * 1024;
  book.global0 = from0;
  const uint4* from1 = codebooks + 16384 + static_cast<long long>(index) * 1024;
  book.global1 = from1;
  return book;
}

// One unit: 6 weights of one row, the sum of an entry of each stage.
__device__ __forceinline__ void DecodeUnit(const unsigned* words, int unit, const Codebook& book,
                                           unsigned (&pairs)[3]) {
  const unsigned code0 = Bits(words, unit * kUnitBits, 10);
  const uint4 entry0 = __ldg(book.global0 + code0);
  pairs[0] = entry0.x;
  pairs[1] = entry0.y;
  pairs[2] = entry0.z;
  const unsigned code1 = Bits(words, unit * kUnitBits + 10, 10);
  const uint4 entry1 = __ldg(book.global1 + code1);
  pairs[0] = AddPairs(pairs[0], entry1.x);
  pairs[1] = AddPairs(pairs[1], entry1.y);
  pairs[2] = AddPairs(pairs[2], entry1.z);
}

// Copies kStepColumns activations of each token, from `first_column` on; zeros behind the last column.
__device__ __forceinline__ void StageActivations(const __half* __restrict__ x, __half* to_shared,
                                                 int first_column, int first_token) {
  for (int i = threadIdx.x; i < kTokens * (kStepColumns / 4); i += kThreads) {
    const int t = i / (kStepColumns / 4);
    const int c = i % (kStepColumns / 4) * 4;
    const bool inside = first_column + c < kK;
    const __half* from = x + (first_token + t) * static_cast<long long>(kK) + first_column + c;
    __half* to = to_shared + t * kTokenPitch + c;
    *reinterpret_cast<uint2*>(to) = inside ? __ldg(reinterpret_cast<const uint2*>(from)) : make_uint2(0, 0);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 4)
gemv(const uint2* __restrict__ codes, const uint4* __restrict__ codebooks, const __half* __restrict__ x,
     float* __restrict__ partial) {
  extern __shared__ __align__(16) unsigned char shared[];
  __half* x_shared = reinterpret_cast<__half*>(shared);
  const int row_lane = threadIdx.x % 32 / kColumnLanes;
  const int column_lane = threadIdx.x % kColumnLanes;
  const int tile = blockIdx.x * 3 + threadIdx.x / 32;  // a warp works on one row tile
  const int first_row = tile * kRowSlots * kRowLanes;
  const int first_token = blockIdx.y * kTokens;
  const uint2* tile_codes = codes + static_cast<long long>(tile) * kTileVectors;

  // 1. The codebook.
  Codebook book;  // changes with the segment

  float acc[kRowSlots][kTokens] = {};
  const int first_step = blockIdx.z * kBlockSteps;
  const int last_step = min(first_step + kBlockSteps, kSteps);
  for (int step = first_step; step < last_step; ++step) {
    // 2. The activations of this step and its codebook.
    const int segment = step / kSegmentSteps;
    const int first_chunk = step % kSegmentSteps * kStepChunks;  // of the segment
    const int first_column = segment * kSegmentColumns + step % kSegmentSteps * kStepColumns;
    __syncthreads();  // all warps are done with the last step's activations and codebook
    book = LoadCodebook(codebooks, blockIdx.x / 16 * 4 + segment);
    StageActivations(x, x_shared, first_column, first_token);
    __syncthreads();

    // 3. Codes of all rows, then unit after unit: decode and multiply.
    for (int g = 0; g < kStepGroups; ++g) {
      unsigned words[kRowSlots][kChunkWords];
      const uint2* at = tile_codes + (segment * kChunks + first_chunk + g * kColumnLanes) * kChunkVectors;
      at += row_lane * kColumnLanes + column_lane;
      #pragma unroll
      for (int r = 0; r < kRowSlots; ++r) {
        #pragma unroll
        for (int p = 0; p < kPlanes; ++p) {
          const uint2 vector = __ldcs(at + (r * kPlanes + p) * kRowLanes * kColumnLanes);
          words[r][2 * p] = vector.x;
          words[r][2 * p + 1] = vector.y;
        }
      }
      #pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const int piece = (g * kPieces + p) * kColumnLanes + column_lane;
        const __half* x_at = x_shared + piece * kPiecePitch;
        unsigned xs[kTokens][kFragmentColumns / 2];
        #pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          #pragma unroll
          for (int i = 0; i < kFragmentColumns / 4; ++i) {
            const uint2 some = *reinterpret_cast<const uint2*>(x_at + t * kTokenPitch + 4 * i);
            xs[t][2 * i] = some.x;
            xs[t][2 * i + 1] = some.y;
          }
        }
        #pragma unroll
        for (int r = 0; r < kRowSlots; ++r) {
          #pragma unroll
          for (int u = 0; u < kFragmentUnits; ++u) {
            unsigned pairs[kPairs];
            DecodeUnit(words[r], p * kPieceUnits + u, book, pairs);
            #pragma unroll
            for (int i = 0; i < kPairs; ++i) {
              const float2 w = HalfFloats(pairs[i]);
              #pragma unroll
              for (int t = 0; t < kTokens; ++t) {
                const float2 near = HalfFloats(xs[t][u * kPairs + i]);
                acc[r][t] = fmaf(w.x, near.x, acc[r][t]);
                acc[r][t] = fmaf(w.y, near.y, acc[r][t]);
              }
            }
          }
        }
      }
    }
  }

  // 4. Sum over the lanes of a row and write.
  #pragma unroll
  for (int r = 0; r < kRowSlots; ++r) {
    const int row = first_row + r * kRowLanes + row_lane;
    #pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int token = first_token + t;
      float sum = SumLanes(acc[r][t], kColumnLanes);
      if (column_lane == 0) {
        partial[(blockIdx.z * kM + token) * static_cast<long long>(kN) + row] = sum;
      }
    }
  }
}

// Adds the sums of the 4 blocks that share an output, in the order of k: the same bits at every run.
extern "C" __global__ void __launch_bounds__(256)
sum_partials(const float* __restrict__ partial, __half* __restrict__ y) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= kM * kN) return;
  float sum = 0;
  for (int s = 0; s < 4; ++s) sum += partial[s * static_cast<long long>(kM * kN) + i];
  y[i] = __float2half_rn(sum);
}
