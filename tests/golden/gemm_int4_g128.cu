// Made by: vqllm codegen --op gemm --format 'int4-g128' --m 64 --n 4096 --k 4096 --gpu a100
// Do not edit: change the plan and make it again.
//
// y[m][n] = sum over k of x[m][k] * scale * decode(codes)[n][k]
// Format {"name":"int4-g128","kind":"int","bits":4,"symmetric":false,"scale":"group","group":128}, 4.156 bits a weight. Written for a100 (sm_80).
//
// Plan
//   compute   dequant_mma, fusion zero_shuffle
//   entries   none
//   block     8 warps: 8 over outputs x 1 over k; 256 outputs, 32 tokens
//   k         32 steps, 11 a block; 3 block(s) share an output
//   budget    160 registers a thread, 33280 bytes of shared memory, 1 blocks an SM
//   launch    gemm<<<(16, 2, 3), 256, 33280>>>
//   launch    sum_partials<<<(1024, 1, 1), 256, 0>>>
//
// Codes, 8192 KiB: a warp reads a row tile of 32 rows; columns of one group (4 lanes, pieces of 32 columns):
//   |lane 0: 0..31|lane 1: 32..63| ... |lane 3: ..127|
// words of a lane and row: 4 (4 units of 32 bits, 0 spare bits)
#include <cuda_fp16.h>

constexpr int kN = 4096;  // outputs, rows of W
constexpr int kK = 4096;  // inputs, columns of W
constexpr int kThreads = 256;

// Codes: [row tile][group of chunks][row slot][plane][row lane][column lane][vector of 4 words].
constexpr int kRowSlots = 4;  // rows of codes that a lane holds at once
constexpr int kRowLanes = 8;
constexpr int kColumnLanes = 4;
constexpr int kPlanes = 1;      // loads of a chunk
constexpr int kChunkWords = 4;  // 32-bit words of a chunk
constexpr int kPieces = 1;      // of a chunk
constexpr int kPieceUnits = 4;
constexpr int kUnitColumns = 8;
constexpr int kPieceColumns = kPieceUnits * kUnitColumns;
constexpr int kPairs = 4;                                       // registers of a decoded unit, two values each
constexpr int kChunkVectors = kRowSlots * kPlanes * kRowLanes;  // of all rows of a tile
constexpr int kTileVectors = 4096;

// The reduction runs in steps of kStepChunks chunks a row.
constexpr int kSteps = 32;
constexpr int kBlockSteps = 11;  // of one block, of 3 that share outputs
constexpr int kStepGroups = 1;
constexpr int kStepChunks = kStepGroups * kColumnLanes;
constexpr int kStepColumns = kStepChunks * kPieces * kPieceColumns;

// Activations in shared memory: 2 slots of one step each. Pieces and tokens lie so far apart that the
// eight lanes of one 16-byte access meet different banks.
constexpr int kM = 64;       // tokens
constexpr int kTokens = 32;  // of a block
constexpr int kPiecePitch = 40;
constexpr int kTokenPitch = 160;
constexpr int kFragmentUnits = 1;  // units whose activations are read at once
constexpr int kFragmentColumns = kFragmentUnits * kUnitColumns;
constexpr int kSlots = 2;
constexpr int kSlotValues = kTokens * kTokenPitch;
constexpr int kWarpsN = 8;        // warps side by side over outputs
constexpr int kWarpsK = 1;        // warps that share outputs, a group of each step each
constexpr int kRowFragments = 2;  // of 16 rows of W, of a warp
constexpr int kTileRows = 16 * kRowFragments;
constexpr int kBlockRows = kWarpsN * kTileRows;
constexpr int kSumPitch = kBlockRows + 4;  // floats from token to token of the sums

static_assert(kTokens % 8 == 0, "fragment B has eight tokens");
static_assert(kFragmentColumns % 4 == 0, "a lane gives four columns to an mma");
static_assert(kPieceUnits % kFragmentUnits == 0, "a piece is whole fragments");
static_assert(kStepGroups == kWarpsK, "each warp takes one group of a step");
static_assert(kK % 8 == 0, "a row of x is whole vectors");

// Two fp16 values in one register.
__device__ __forceinline__ __half2 AsHalf2(unsigned pair) { return *reinterpret_cast<const __half2*>(&pair); }
__device__ __forceinline__ unsigned AsPair(__half2 value) { return *reinterpret_cast<const unsigned*>(&value); }

__device__ __forceinline__ unsigned SubPairs(unsigned a, unsigned b) {
  return AsPair(__hsub2(AsHalf2(a), AsHalf2(b)));
}

__device__ __forceinline__ unsigned MulPairs(unsigned a, unsigned b) {
  return AsPair(__hmul2(AsHalf2(a), AsHalf2(b)));
}

// (word & mask) | 0x64006400 in one lop3: small integers in the low bits of two fp16 values that read 1024 + integer.
__device__ __forceinline__ unsigned MaskedHalf(unsigned word, unsigned mask) {
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(0x64006400u));
  return result;
}

// Starts a copy of 16 bytes from global to shared memory; where `inside` is false it writes zeros and reads nothing.
__device__ __forceinline__ void CopyAsync(uint4* to, const uint4* from, bool inside) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(inside ? 16 : 0)
               : "memory");
}

// Ends a group of copies, and waits until at most `pending` groups of this thread are under way.
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void WaitCopies(int pending) {
  if (pending == 0) asm volatile("cp.async.wait_group 0;" ::: "memory");
  if (pending == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
  if (pending == 2) asm volatile("cp.async.wait_group 2;" ::: "memory");
}

// d += a b for one warp: a 16 x 16 and b 16 x 8 of fp16, d 16 x 8 of fp32 (PTX ISA, mma.m16n8k16). With g = lane / 4
// and q = lane % 4: a holds rows g, g + 8, g, g + 8 at columns 2q, 2q, 2q + 8, 2q + 8; b column g at rows 2q, 2q + 8;
// d rows g, g, g + 8, g + 8 at columns 2q, 2q + 1, 2q, 2q + 1.
__device__ __forceinline__ void Mma(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                    unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
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
  return __ldg(scales + (inside / 32 * 32 + group) * 32 + inside % 32);
}

// Starts the copies of kStepColumns activations of each token, from `first_column` on; zeros behind the last column.
__device__ __forceinline__ void StageActivations(const __half* __restrict__ x, __half* to_shared,
                                                 int first_column, int first_token) {
  for (int i = threadIdx.x; i < kTokens * (kStepColumns / 8); i += kThreads) {
    const int t = i / (kStepColumns / 8);
    const int c = i % (kStepColumns / 8) * 8;
    const bool inside = first_column + c < kK;
    const __half* from = x + (first_token + t) * static_cast<long long>(kK) + first_column + c;
    __half* to = to_shared + t * kTokenPitch + c / kPieceColumns * kPiecePitch + c % kPieceColumns;
    CopyAsync(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(inside ? from : x), inside);
  }
}


// The first column of a step.
__device__ __forceinline__ int ColumnOf(int step) {
  return step * kStepColumns;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
gemm(const uint4* __restrict__ codes, const unsigned* __restrict__ scales, const __half* __restrict__ x,
     float* __restrict__ partial) {
  extern __shared__ __align__(16) unsigned char shared[];
  __half* x_shared = reinterpret_cast<__half*>(shared);
  const int lane = threadIdx.x % 32;
  const int row_lane = lane / kColumnLanes;     // g of the mma fragments
  const int column_lane = lane % kColumnLanes;  // q
  const int warp_n = threadIdx.x / 32 % kWarpsN;
  const int warp_k = threadIdx.x / 32 / kWarpsN;
  const int tile = blockIdx.x * kWarpsN + warp_n;
  const int first_row = tile * kRowSlots * kRowLanes;
  const int first_token = blockIdx.y * kTokens;
  const uint4* tile_codes = codes + static_cast<long long>(tile) * kTileVectors + lane;
  const int first_step = blockIdx.z * kBlockSteps;
  const int last_step = min(first_step + kBlockSteps, kSteps);

  // 1. Start the copies of the first steps.
  #pragma unroll
  for (int s = 0; s < kSlots - 1; ++s) {
    if (first_step + s < last_step) {
      StageActivations(x, x_shared + s * kSlotValues, ColumnOf(first_step + s), first_token);
    }
    CommitCopies();
  }

  float acc[kRowFragments][kTokens / 8][4] = {};
  for (int step = first_step; step < last_step; ++step) {
    // 2. Codes of this step, straight into registers.
    const int first_chunk = step * kStepChunks;
    const int first_column = step * kStepColumns;
    unsigned words[kRowSlots][kChunkWords];
    const uint4* at = tile_codes + (first_chunk + warp_k * kColumnLanes) * kChunkVectors;
    #pragma unroll
    for (int r = 0; r < kRowSlots; ++r) {
      #pragma unroll
      for (int p = 0; p < kPlanes; ++p) {
        const uint4 vector = __ldcs(at + (r * kPlanes + p) * 32);
        words[r][4 * p] = vector.x;
        words[r][4 * p + 1] = vector.y;
        words[r][4 * p + 2] = vector.z;
        words[r][4 * p + 3] = vector.w;
      }
    }

    // 3. Wait for this step's activations; then refill the slot that everybody has left.
    WaitCopies(kSlots - 2);
    __syncthreads();
    const int next = step + kSlots - 1;
    if (next < last_step) {
      __half* free_slot = x_shared + (next - first_step) % kSlots * kSlotValues;
      StageActivations(x, free_slot, ColumnOf(next), first_token);
    }
    CommitCopies();

    // 4. Decode into fragments A, read fragments B, multiply.
    const __half* x_now = x_shared + (step - first_step) % kSlots * kSlotValues;
    #pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int piece = (warp_k * kPieces + p) * kColumnLanes + column_lane;
      const int column = first_column + piece * kPieceColumns;
      unsigned piece_scales[kRowSlots];
      unsigned offsets[kRowSlots];
      #pragma unroll
      for (int r = 0; r < kRowSlots; ++r) {
        const int row = first_row + r * kRowLanes + row_lane;
        const unsigned scale_zero = ScaleAt(scales, row, column);
        const unsigned offset = __byte_perm(scale_zero, scale_zero, 0x3232);
        const unsigned scale = __byte_perm(scale_zero, scale_zero, 0x1010);
        piece_scales[r] = scale;
        offsets[r] = offset;
      }
      #pragma unroll
      for (int f = 0; f < kPieceUnits / kFragmentUnits; ++f) {
        unsigned weights[kRowSlots][kFragmentUnits][kPairs];
        #pragma unroll
        for (int r = 0; r < kRowSlots; ++r) {
          DecodeUnit(words[r], p * kPieceUnits + f, offsets[r], weights[r][0]);
          #pragma unroll
          for (int i = 0; i < kPairs; ++i) weights[r][0][i] = MulPairs(weights[r][0][i], piece_scales[r]);
        }
        #pragma unroll
        for (int j = 0; j < kTokens / 8; ++j) {
          const __half* x_at =
              x_now + (j * 8 + row_lane) * kTokenPitch + piece * kPiecePitch + f * kFragmentColumns;
          unsigned xs[kFragmentColumns / 2];
          const uint4 some = *reinterpret_cast<const uint4*>(x_at);
          xs[0] = some.x;
          xs[1] = some.y;
          xs[2] = some.z;
          xs[3] = some.w;
          #pragma unroll
          for (int i = 0; i < kFragmentColumns / 4; ++i) {
            #pragma unroll
            for (int t = 0; t < kRowFragments; ++t) {
              Mma(acc[t][j], weights[2 * t][0][2 * i], weights[2 * t + 1][0][2 * i],
                  weights[2 * t][0][2 * i + 1], weights[2 * t + 1][0][2 * i + 1],
                  xs[2 * i], xs[2 * i + 1]);
            }
          }
        }
      }
    }
  }

  // 5. Bring the sums together in shared memory and write rows of outputs.
  WaitCopies(0);
  __syncthreads();
  float* sums = reinterpret_cast<float*>(shared);
  #pragma unroll
  for (int t = 0; t < kRowFragments; ++t) {
    const int row = warp_n * kTileRows + 16 * t + row_lane;
    const int row_below = warp_n * kTileRows + 16 * t + 8 + row_lane;
    #pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      float* to = sums + (warp_k * kTokens + j * 8 + 2 * column_lane) * kSumPitch;
      to[row] = acc[t][j][0];
      to[kSumPitch + row] = acc[t][j][1];
      to[row_below] = acc[t][j][2];
      to[kSumPitch + row_below] = acc[t][j][3];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTokens * kBlockRows; i += kThreads) {
    const int row = blockIdx.x * kBlockRows + i % kBlockRows;
    const int token = first_token + i / kBlockRows;
    float sum = sums[i / kBlockRows * kSumPitch + i % kBlockRows];
    partial[(blockIdx.z * kM + token) * static_cast<long long>(kN) + row] = sum;
  }
}

// Adds the sums of the 3 blocks that share an output, in the order of k: the same bits at every run.
extern "C" __global__ void __launch_bounds__(256)
sum_partials(const float* __restrict__ partial, __half* __restrict__ y) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= kM * kN) return;
  float sum = 0;
  for (int s = 0; s < 3; ++s) sum += partial[s * static_cast<long long>(kM * kN) + i];
  y[i] = __float2half_rn(sum);
}
