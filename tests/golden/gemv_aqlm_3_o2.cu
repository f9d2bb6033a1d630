// Made by: vqllm codegen --op gemv --format 'aqlm-3' --m 1 --n 4096 --k 4096 --gpu rtx4090 --level o2
// Do not edit: change the plan and make it again.
//
// y[m][n] = sum over k of x[m][k] * scale * decode(codes)[n][k]
// Format {"name":"aqlm-3","kind":"table","subvector":8,"entries":[4096,4096],"axis":"in","scope":{"kind":"tensor"},"scale":"per-output"}, 3.066 bits a weight. Written for rtx4090 (sm_89).
//
// Plan
//   compute   dequant_fma, fusion none
//   entries   32 in registers, 2880 in shared memory, 1184 in global memory; 32 in registers, 2880 in shared memory, 1184 in global memory
//   block     8 warps: 8 over outputs x 1 over k; 32 outputs, 1 tokens
//   k         1 steps, 1 a block; 1 block(s) share an output
//   budget    152 registers a thread, 101376 bytes of shared memory, 1 blocks an SM
//   launch    gemv<<<(128, 1, 1), 256, 101376>>>
//
// Codes, 6144 KiB: a warp reads a row tile of 4 rows; columns of one group (32 lanes, pieces of 8 columns):
//   |lane 0: 0..7|lane 1: 8..15| ... |lane 31: ..255| then lane 0: 256..263, and so on, 4 times
// words of a lane and row: 3 (4 units of 24 bits, 0 spare bits)
#include <cuda_fp16.h>

constexpr int kN = 4096;  // outputs, rows of W
constexpr int kK = 4096;  // inputs, columns of W
constexpr int kThreads = 256;

// Codes: [row tile][group of chunks][row slot][plane][row lane][column lane][vector of 1 words].
constexpr int kRowSlots = 4;  // rows of codes that a lane holds at once
constexpr int kRowLanes = 1;
constexpr int kColumnLanes = 32;
constexpr int kPlanes = 3;      // loads of a chunk
constexpr int kChunkWords = 3;  // 32-bit words of a chunk
constexpr int kPieces = 4;      // of a chunk
constexpr int kPieceUnits = 1;
constexpr int kUnitColumns = 8;
constexpr int kPieceColumns = kPieceUnits * kUnitColumns;
constexpr int kPairs = 4;                                       // registers of a decoded unit, two values each
constexpr int kChunkVectors = kRowSlots * kPlanes * kRowLanes;  // of all rows of a tile
constexpr int kTileVectors = 1536;

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
constexpr int kCodebookBytes = 93184;  // before the activations

static_assert(kFragmentColumns % 4 == 0, "activations are read in vectors of four or eight");
static_assert(kPieceUnits % kFragmentUnits == 0, "a piece is whole fragments");
static_assert(kK % 8 == 0, "a row of x is whole vectors");

constexpr int kUnitBits = 24;  // the codes of all stages of one subvector

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
  unsigned held0[4];  // this lane's entry of the 32 hottest
  const uint4* shared0;
  const uint4* global0;
  unsigned held1[4];  // this lane's entry of the 32 hottest
  const uint4* shared1;
  const uint4* global1;
};

// Copies entries into shared memory; a barrier must follow.
__device__ __forceinline__ Codebook LoadCodebook(const uint4* __restrict__ codebooks, uint4* shared) {
  Codebook book;
  const uint4* from0 = codebooks;
  book.global0 = from0;
  const uint4 own0_0 = __ldg(from0 + threadIdx.x % 32 * 1 + 0);
  book.held0[0] = own0_0.x;
  book.held0[1] = own0_0.y;
  book.held0[2] = own0_0.z;
  book.held0[3] = own0_0.w;
  for (int i = threadIdx.x; i < 2912; i += kThreads) {
    shared[i] = __ldg(from0 + i);
  }
  book.shared0 = shared;
  const uint4* from1 = codebooks + 4096;
  book.global1 = from1;
  const uint4 own1_0 = __ldg(from1 + threadIdx.x % 32 * 1 + 0);
  book.held1[0] = own1_0.x;
  book.held1[1] = own1_0.y;
  book.held1[2] = own1_0.z;
  book.held1[3] = own1_0.w;
  for (int i = threadIdx.x; i < 2912; i += kThreads) {
    shared[2912 + i] = __ldg(from1 + i);
  }
  book.shared1 = shared + 2912;
  return book;
}

// One unit: 8 weights of one row, the sum of an entry of each stage.
__device__ __forceinline__ void DecodeUnit(const unsigned* words, int unit, const Codebook& book,
                                           unsigned (&pairs)[4]) {
  const unsigned code0 = Bits(words, unit * kUnitBits, 12);
  uint4 entry0;
  entry0.x = __shfl_sync(0xffffffffu, book.held0[0], code0);
  entry0.y = __shfl_sync(0xffffffffu, book.held0[1], code0);
  entry0.z = __shfl_sync(0xffffffffu, book.held0[2], code0);
  entry0.w = __shfl_sync(0xffffffffu, book.held0[3], code0);
  if (code0 >= 32) entry0 = code0 < 2912 ? book.shared0[code0] : __ldg(book.global0 + code0);
  pairs[0] = entry0.x;
  pairs[1] = entry0.y;
  pairs[2] = entry0.z;
  pairs[3] = entry0.w;
  const unsigned code1 = Bits(words, unit * kUnitBits + 12, 12);
  uint4 entry1;
  entry1.x = __shfl_sync(0xffffffffu, book.held1[0], code1);
  entry1.y = __shfl_sync(0xffffffffu, book.held1[1], code1);
  entry1.z = __shfl_sync(0xffffffffu, book.held1[2], code1);
  entry1.w = __shfl_sync(0xffffffffu, book.held1[3], code1);
  if (code1 >= 32) entry1 = code1 < 2912 ? book.shared1[code1] : __ldg(book.global1 + code1);
  pairs[0] = AddPairs(pairs[0], entry1.x);
  pairs[1] = AddPairs(pairs[1], entry1.y);
  pairs[2] = AddPairs(pairs[2], entry1.z);
  pairs[3] = AddPairs(pairs[3], entry1.w);
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
gemv(const unsigned* __restrict__ codes, const uint4* __restrict__ codebooks,
     const __half* __restrict__ scales, const __half* __restrict__ x, __half* __restrict__ y) {
  extern __shared__ __align__(16) unsigned char shared[];
  __half* x_shared = reinterpret_cast<__half*>(shared + kCodebookBytes);
  const int column_lane = threadIdx.x % 32;
  const int tile = blockIdx.x * 8 + threadIdx.x / 32;  // a warp works on one row tile
  const int first_row = tile * kRowSlots;
  const int first_token = blockIdx.y * kTokens;
  const unsigned* tile_codes = codes + static_cast<long long>(tile) * kTileVectors;

  // 1. The codebook.
  const Codebook book = LoadCodebook(codebooks, reinterpret_cast<uint4*>(shared));

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
      const unsigned* at = tile_codes + (first_chunk + g * kColumnLanes) * kChunkVectors + column_lane;
      #pragma unroll
      for (int r = 0; r < kRowSlots; ++r) {
        #pragma unroll
        for (int p = 0; p < kPlanes; ++p) {
          words[r][p] = __ldcs(at + (r * kPlanes + p) * kColumnLanes);
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
        sum *= __half2float(scales[row]);
        y[token * static_cast<long long>(kN) + row] = __float2half_rn(sum);
      }
    }
  }
}
