// Made by: vqllm codegen --op gemv --format 'gptvq-2' --m 1 --n 4096 --k 4096 --gpu h100
// Do not edit: change the plan and make it again.
//
// y[m][n] = sum over k of x[m][k] * scale * decode(codes)[n][k]
// Format {"name":"gptvq-2","kind":"table","subvector":4,"entries":[256],"axis":"in","scope":{"kind":"tile","rows":256,"cols":256}}, 2.250 bits a weight. Written for h100 (sm_90).
//
// Plan
//   compute   dequant_fma, fusion none
//   entries   256 in shared memory x 16 copies
//   block     4 warps: 4 over outputs x 1 over k; 256 outputs, 1 tokens
//   k         16 steps, 2 a block; 8 block(s) share an output
//   budget    144 registers a thread, 33280 bytes of shared memory, 2 blocks an SM
//   launch    gemv<<<(16, 1, 8), 128, 33280>>>
//   launch    sum_partials<<<(16, 1, 1), 256, 0>>>
//
// Codes, 4096 KiB: a warp reads a row tile of 64 rows; columns of one group (2 lanes, pieces of 8 columns):
//   |lane 0: 0..7|lane 1: 8..15| then lane 0: 16..23, and so on, 16 times
// words of a lane and row: 8 (32 units of 8 bits, 0 spare bits)
#include <cuda_fp16.h>

constexpr int kN = 4096;  // outputs, rows of W
constexpr int kK = 4096;  // inputs, columns of W
constexpr int kThreads = 128;

// Codes: [row tile][segment][group of chunks][row slot][plane][row lane][column lane][vector of 4 words].
constexpr int kRowSlots = 4;  // rows of codes that a lane holds at once
constexpr int kRowLanes = 16;
constexpr int kColumnLanes = 2;
constexpr int kPlanes = 2;      // loads of a chunk
constexpr int kChunkWords = 8;  // 32-bit words of a chunk
constexpr int kPieces = 16;     // of a chunk
constexpr int kPieceUnits = 2;
constexpr int kUnitColumns = 4;
constexpr int kPieceColumns = kPieceUnits * kUnitColumns;
constexpr int kPairs = 2;                                       // registers of a decoded unit, two values each
constexpr int kChunkVectors = kRowSlots * kPlanes * kRowLanes;  // of all rows of a tile
constexpr int kTileVectors = 4096;

// The reduction runs in steps of kStepChunks chunks a row.
constexpr int kSteps = 16;
constexpr int kBlockSteps = 2;  // of one block, of 8 that share outputs
constexpr int kStepGroups = 1;
constexpr int kStepChunks = kStepGroups * kColumnLanes;
constexpr int kStepColumns = kStepChunks * kPieces * kPieceColumns;
constexpr int kChunks = 2;  // of a row in a segment, which has a codebook of its own
constexpr int kSegmentSteps = 1;
constexpr int kSegmentColumns = 256;

// Activations in shared memory, pieces kPiecePitch apart so that neighbouring lanes meet different banks.
constexpr int kM = 1;       // tokens
constexpr int kTokens = 1;  // of a block
constexpr int kPiecePitch = 8;
constexpr int kTokenPitch = 256;
constexpr int kFragmentUnits = 2;  // units whose activations are read at once
constexpr int kFragmentColumns = kFragmentUnits * kUnitColumns;
constexpr int kCodebookBytes = 32768;  // before the activations

static_assert(kFragmentColumns % 4 == 0, "activations are read in vectors of four or eight");
static_assert(kPieceUnits % kFragmentUnits == 0, "a piece is whole fragments");
static_assert(kK % 8 == 0, "a row of x is whole vectors");

constexpr int kUnitBits = 8;  // the codes of all stages of one subvector

// `width` bits from bit `at` of a lane's words, none of which crosses a word. `at` is known once loops are unrolled.
__device__ __forceinline__ unsigned Bits(const unsigned* words, int at, int width) {
  return words[at / 32] >> (at % 32) & ((1u << width) - 1);
}

// Two fp16 values in one register.
__device__ __forceinline__ __half2 AsHalf2(unsigned pair) { return *reinterpret_cast<const __half2*>(&pair); }
__device__ __forceinline__ unsigned AsPair(__half2 value) { return *reinterpret_cast<const unsigned*>(&value); }

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
  const uint2* shared0;
};

// Copies entries into shared memory; a barrier must follow.
__device__ __forceinline__ Codebook LoadCodebook(const uint2* __restrict__ codebooks, uint2* shared,
                                                 int index) {
  Codebook book;
  const uint2* from0 = codebooks + static_cast<long long>(index) * 256;
  for (int i = threadIdx.x; i < 4096; i += kThreads) {
    shared[i] = __ldg(from0 + i / 16);
  }
  book.shared0 = shared + threadIdx.x % 16;
  return book;
}

// One unit: 4 weights of one row, the sum of an entry of each stage.
__device__ __forceinline__ void DecodeUnit(const unsigned* words, int unit, const Codebook& book,
                                           unsigned (&pairs)[2]) {
  const unsigned code0 = Bits(words, unit * kUnitBits, 8);
  const uint2 entry0 = book.shared0[code0 * 16];
  pairs[0] = entry0.x;
  pairs[1] = entry0.y;
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

extern "C" __global__ void __launch_bounds__(kThreads, 2)
gemv(const uint4* __restrict__ codes, const uint2* __restrict__ codebooks, const __half* __restrict__ x,
     float* __restrict__ partial) {
  extern __shared__ __align__(16) unsigned char shared[];
  __half* x_shared = reinterpret_cast<__half*>(shared + kCodebookBytes);
  const int row_lane = threadIdx.x % 32 / kColumnLanes;
  const int column_lane = threadIdx.x % kColumnLanes;
  const int tile = blockIdx.x * 4 + threadIdx.x / 32;  // a warp works on one row tile
  const int first_row = tile * kRowSlots * kRowLanes;
  const int first_token = blockIdx.y * kTokens;
  const uint4* tile_codes = codes + static_cast<long long>(tile) * kTileVectors;

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
    book = LoadCodebook(codebooks, reinterpret_cast<uint2*>(shared), blockIdx.x * 16 + segment);
    StageActivations(x, x_shared, first_column, first_token);
    __syncthreads();

    // 3. Codes of all rows, then unit after unit: decode and multiply.
    for (int g = 0; g < kStepGroups; ++g) {
      unsigned words[kRowSlots][kChunkWords];
      const uint4* at = tile_codes + (segment * kChunks + first_chunk + g * kColumnLanes) * kChunkVectors;
      at += row_lane * kColumnLanes + column_lane;
      #pragma unroll
      for (int r = 0; r < kRowSlots; ++r) {
        #pragma unroll
        for (int p = 0; p < kPlanes; ++p) {
          const uint4 vector = __ldcs(at + (r * kPlanes + p) * kRowLanes * kColumnLanes);
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

// Adds the sums of the 8 blocks that share an output, in the order of k: the same bits at every run.
extern "C" __global__ void __launch_bounds__(256)
sum_partials(const float* __restrict__ partial, __half* __restrict__ y) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= kM * kN) return;
  float sum = 0;
  for (int s = 0; s < 8; ++s) sum += partial[s * static_cast<long long>(kM * kN) + i];
  y[i] = __float2half_rn(sum);
}
