// Made by: vqllm codegen --op gemm --format 'VQ<8,12,1>-out' --m 64 --n 4096 --k 4096 --gpu a100
// Do not edit: change the plan and make it again.
//
// y[m][n] = sum over k of x[m][k] * scale * decode(codes)[n][k]
// Format {"name":"VQ<8,12,1>-out","kind":"table","subvector":8,"entries":[4096],"axis":"out","scope":{"kind":"tensor"}}, 1.531 bits a weight. Written for a100 (sm_80).
//
// Plan
//   compute   dequant_mma, fusion zero_shuffle
//   entries   4096 in shared memory
//   block     4 warps: 4 over outputs x 1 over k; 256 outputs, 32 tokens
//   k         32 steps, 11 a block; 3 block(s) share an output
//   budget    168 registers a thread, 86016 bytes of shared memory, 1 blocks an SM
//   launch    gemm<<<(16, 2, 3), 128, 86016>>>
//   launch    sum_partials<<<(1024, 1, 1), 256, 0>>>
//
// Codes, 3072 KiB: a warp reads a row tile of 64 rows; columns of one group (4 lanes, pieces of 8 columns):
//   |lane 0: 0..7|lane 1: 8..15| ... |lane 3: ..31| then lane 0: 32..39, and so on, 4 times
// words of a lane and row: 12 (32 units of 12 bits, 0 spare bits)
#include <cuda_fp16.h>

constexpr int kN = 4096;  // outputs, rows of W
constexpr int kK = 4096;  // inputs, columns of W
constexpr int kThreads = 128;

// Codes: [row tile][group of chunks][row slot][plane][row lane][column lane][vector of 4 words].
constexpr int kRowSlots = 1;  // rows of codes that a lane holds at once
constexpr int kRowLanes = 8;
constexpr int kColumnLanes = 4;
constexpr int kPlanes = 3;       // loads of a chunk
constexpr int kChunkWords = 12;  // 32-bit words of a chunk
constexpr int kPieces = 4;       // of a chunk
constexpr int kPieceUnits = 8;
constexpr int kUnitColumns = 1;
constexpr int kUnitRows = 8;
constexpr int kPieceColumns = kPieceUnits * kUnitColumns;
constexpr int kPairs = 4;                                       // registers of a decoded unit, two values each
constexpr int kChunkVectors = kRowSlots * kPlanes * kRowLanes;  // of all rows of a tile
constexpr int kTileVectors = 3072;

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
constexpr int kPiecePitch = 8;
constexpr int kTokenPitch = 160;
constexpr int kFragmentUnits = 4;  // units whose activations are read at once
constexpr int kFragmentColumns = kFragmentUnits * kUnitColumns;
constexpr int kCodebookBytes = 65536;  // before the activations
constexpr int kSlots = 2;
constexpr int kSlotValues = kTokens * kTokenPitch;
constexpr int kWarpsN = 4;        // warps side by side over outputs
constexpr int kWarpsK = 1;        // warps that share outputs, a group of each step each
constexpr int kRowFragments = 4;  // of 16 rows of W, of a warp
constexpr int kTileRows = 16 * kRowFragments;
constexpr int kBlockRows = kWarpsN * kTileRows;
constexpr int kSumPitch = kBlockRows + 4;  // floats from token to token of the sums

static_assert(kTokens % 8 == 0, "fragment B has eight tokens");
static_assert(kFragmentColumns % 4 == 0, "a lane gives four columns to an mma");
static_assert(kPieceUnits % kFragmentUnits == 0, "a piece is whole fragments");
static_assert(kStepGroups == kWarpsK, "each warp takes one group of a step");
static_assert(kK % 8 == 0, "a row of x is whole vectors");

constexpr int kUnitBits = 12;  // the codes of all stages of one subvector

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

// Where the entries of each stage are read from.
struct Codebook {
  const uint4* shared0;
};

// Copies entries into shared memory; a barrier must follow.
__device__ __forceinline__ Codebook LoadCodebook(const uint4* __restrict__ codebooks, uint4* shared) {
  Codebook book;
  const uint4* from0 = codebooks;
  for (int i = threadIdx.x; i < 4096; i += kThreads) {
    shared[i] = __ldg(from0 + i);
  }
  book.shared0 = shared;
  return book;
}

// One unit: 8 weights of one column, the sum of an entry of each stage.
__device__ __forceinline__ void DecodeUnit(const unsigned* words, int unit, const Codebook& book,
                                           unsigned (&pairs)[4]) {
  const unsigned code0 = Bits(words, unit * kUnitBits, 12);
  const uint4 entry0 = book.shared0[code0];
  pairs[0] = entry0.x;
  pairs[1] = entry0.y;
  pairs[2] = entry0.z;
  pairs[3] = entry0.w;
}

// Starts the copies of kStepColumns activations of each token, from `first_column` on; zeros behind the last column.
__device__ __forceinline__ void StageActivations(const __half* __restrict__ x, __half* to_shared,
                                                 int first_column, int first_token) {
  for (int i = threadIdx.x; i < kTokens * (kStepColumns / 8); i += kThreads) {
    const int t = i / (kStepColumns / 8);
    const int c = i % (kStepColumns / 8) * 8;
    const bool inside = first_column + c < kK;
    const __half* from = x + (first_token + t) * static_cast<long long>(kK) + first_column + c;
    __half* to = to_shared + t * kTokenPitch + c;
    CopyAsync(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(inside ? from : x), inside);
  }
}


// The first column of a step.
__device__ __forceinline__ int ColumnOf(int step) {
  return step * kStepColumns;
}

// Columns 2i and 2i + 1 of the lane's row `row` of W, both known once loops are unrolled.
__device__ __forceinline__ unsigned WeightPair(const unsigned (&weights)[kRowSlots][kFragmentUnits][kPairs],
                                               int row, int i) {
  const int e = row % kUnitRows;
  const unsigned first = weights[row / kUnitRows][2 * i][e / 2];
  const unsigned second = weights[row / kUnitRows][2 * i + 1][e / 2];
  return __byte_perm(first, second, e % 2 == 0 ? 0x5410 : 0x7632);
}

// The row of a warp's tile that is row `row` of a lane: units follow each other, their rows too.
__device__ __forceinline__ int TileRow(int row, int row_lane) {
  return (row / kUnitRows * kRowLanes + row_lane) * kUnitRows + row % kUnitRows;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
gemm(const uint4* __restrict__ codes, const uint4* __restrict__ codebooks, const __half* __restrict__ x,
     float* __restrict__ partial) {
  extern __shared__ __align__(16) unsigned char shared[];
  __half* x_shared = reinterpret_cast<__half*>(shared + kCodebookBytes);
  const int lane = threadIdx.x % 32;
  const int row_lane = lane / kColumnLanes;     // g of the mma fragments
  const int column_lane = lane % kColumnLanes;  // q
  const int warp_n = threadIdx.x / 32 % kWarpsN;
  const int warp_k = threadIdx.x / 32 / kWarpsN;
  const int tile = blockIdx.x * kWarpsN + warp_n;
  const int first_token = blockIdx.y * kTokens;
  const uint4* tile_codes = codes + static_cast<long long>(tile) * kTileVectors + lane;
  const int first_step = blockIdx.z * kBlockSteps;
  const int last_step = min(first_step + kBlockSteps, kSteps);

  // 1. Start the copies of the first steps; meanwhile fetch the codebook.
  #pragma unroll
  for (int s = 0; s < kSlots - 1; ++s) {
    if (first_step + s < last_step) {
      StageActivations(x, x_shared + s * kSlotValues, ColumnOf(first_step + s), first_token);
    }
    CommitCopies();
  }
  const Codebook book = LoadCodebook(codebooks, reinterpret_cast<uint4*>(shared));

  float acc[kRowFragments][kTokens / 8][4] = {};
  for (int step = first_step; step < last_step; ++step) {
    // 2. Codes of this step, straight into registers.
    const int first_chunk = step * kStepChunks;
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
      #pragma unroll
      for (int f = 0; f < kPieceUnits / kFragmentUnits; ++f) {
        unsigned weights[kRowSlots][kFragmentUnits][kPairs];
        #pragma unroll
        for (int r = 0; r < kRowSlots; ++r) {
          #pragma unroll
          for (int u = 0; u < kFragmentUnits; ++u) {
            DecodeUnit(words[r], p * kPieceUnits + f * kFragmentUnits + u, book, weights[r][u]);
          }
        }
        #pragma unroll
        for (int j = 0; j < kTokens / 8; ++j) {
          const __half* x_at =
              x_now + (j * 8 + row_lane) * kTokenPitch + piece * kPiecePitch + f * kFragmentColumns;
          unsigned xs[kFragmentColumns / 2];
          const uint2 some = *reinterpret_cast<const uint2*>(x_at);
          xs[0] = some.x;
          xs[1] = some.y;
          #pragma unroll
          for (int i = 0; i < kFragmentColumns / 4; ++i) {
            #pragma unroll
            for (int t = 0; t < kRowFragments; ++t) {
              Mma(acc[t][j], WeightPair(weights, 2 * t, 2 * i), WeightPair(weights, 2 * t + 1, 2 * i),
                  WeightPair(weights, 2 * t, 2 * i + 1), WeightPair(weights, 2 * t + 1, 2 * i + 1),
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
    const int row = warp_n * kTileRows + TileRow(2 * t, row_lane);
    const int row_below = warp_n * kTileRows + TileRow(2 * t + 1, row_lane);
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
