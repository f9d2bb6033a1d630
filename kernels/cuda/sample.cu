// token[r] = one draw from logits[r, 0..vocab) for every row r: top-k, then top-p, then min-p at temperature
// 1, each on what the one before left, then the temperature; temperature 0 takes the largest. Ties go to the
// lowest id. A row with a NaN, or whose largest logit is infinite, gives -1.
//
// Probabilities are whole numbers, exp(logit - largest) in units of 2^-40: their sums do not depend on the
// order of threads, so a row, its options and its uniform number always give the same token. The cuts of
// top-k and top-p are found by their bits, 11 at a time, as in a radix sort of which only one bucket is
// followed. Launch: one block of kThreads a row; vocab up to 2^22.
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_scan.cuh>

typedef unsigned long long Weight;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 2048;
constexpr float kUnits = 1099511627776.0f;  // 2^40 a weight of one
static_assert(kBins == 2 * kThreads, "a thread searches two bins");

struct SampleOptions {
  double uniform;  // in [0, 1): where in the sum of probabilities, by id, the draw falls
  float temperature;
  int top_k;  // 0: all
  float top_p;
  float min_p;
};

// What is kept: keys above `key`, and those equal to it up to id `last`.
struct Cut {
  unsigned key;
  int last;
};

using Reduce = cub::BlockReduce<Weight, kThreads>;
using Scan = cub::BlockScan<Weight, kThreads>;
using WarpScan = cub::WarpScan<Weight>;

struct Shared {
  Weight bins[kBins];
  union {
    Reduce::TempStorage reduce;
    Scan::TempStorage scan;
  };
  WarpScan::TempStorage warp_scan[kWarps];
  Weight warp_sums[kWarps];
  Weight value;
  int index;
};

// Larger floats have larger keys; both zeros have one.
__device__ __forceinline__ unsigned KeyOf(float logit) {
  const unsigned bits = __float_as_uint(logit + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float LogitOf(unsigned key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}
__device__ __forceinline__ bool Keeps(const Cut& cut, unsigned key, int id) {
  return key > cut.key || (key == cut.key && id <= cut.last);
}
__device__ __forceinline__ Weight Units(float weight) { return static_cast<Weight>(weight * kUnits); }

// The sum over all threads, to all threads.
__device__ Weight Sum(Shared& shared, Weight mine) {
  const Weight sum = Reduce(shared.reduce).Sum(mine);
  if (threadIdx.x == 0) {
    shared.value = sum;
  }
  __syncthreads();
  const Weight all = shared.value;
  __syncthreads();
  return all;
}

// The id at which the running sum of weight(id) over ids in order first exceeds `target`, which is below the
// whole sum. A warp has a run of neighbouring ids, so that its reads are whole lines.
template <typename WeightOf>
__device__ int IdAt(Shared& shared, int vocab, Weight target, WeightOf weight_of) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int run = (vocab + kThreads - 1) / kThreads * 32;
  const int begin = warp * run;
  const int end = min(begin + run, vocab);
  Weight sum = 0;
  for (int id = begin + lane; id < end; id += 32) {
    sum += weight_of(id);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  if (lane == 0) {
    shared.warp_sums[warp] = sum;
  }
  __syncthreads();
  Weight before = 0;
  for (int w = 0; w < warp; ++w) {
    before += shared.warp_sums[w];
  }
  if (before <= target && target < before + sum) {  // one warp alone
    for (int first = begin; first < end; first += 32) {
      const int id = first + lane;
      const Weight weight = id < end ? weight_of(id) : 0;
      Weight upto;
      Weight tile;
      WarpScan(shared.warp_scan[warp]).InclusiveSum(weight, upto, tile);
      if (target < before + tile) {
        if (before + upto - weight <= target && target < before + upto) {
          shared.index = id;
        }
        break;
      }
      before += tile;
      __syncwarp();
    }
  }
  __syncthreads();
  const int found = shared.index;
  __syncthreads();
  return found;
}

// The cut that keeps, of what `kept` keeps, the fewest of the largest whose weights reach `target`, which is
// at least 1 and at most the whole sum. Equal keys have equal weights.
template <typename WeightOf>
__device__ Cut CutAt(Shared& shared, const float* logits, int vocab, const Cut& kept, Weight target,
                     WeightOf weight_of) {
  unsigned prefix = 0;
  for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift == 10 ? 0 : -1) {
    const int bits = shift == 0 ? 10 : 11;
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
      shared.bins[bin] = 0;
    }
    __syncthreads();
    for (int id = threadIdx.x; id < vocab; id += kThreads) {
      const unsigned key = KeyOf(logits[id]);
      const bool in_bucket = shift == 21 || key >> (shift + bits) == prefix;
      if (in_bucket && Keeps(kept, key, id)) {
        atomicAdd(&shared.bins[key >> shift & ((1u << bits) - 1)], weight_of(key));
      }
    }
    __syncthreads();
    // From the largest bin down, two a thread: the one in which the sum reaches the target.
    const int high = kBins - 1 - 2 * static_cast<int>(threadIdx.x);
    const Weight first = shared.bins[high];
    const Weight second = shared.bins[high - 1];
    Weight above;
    Scan(shared.scan).ExclusiveSum(first + second, above);
    if (above < target && target <= above + first + second) {
      const bool in_second = above + first < target;
      shared.index = in_second ? high - 1 : high;
      shared.value = in_second ? above + first : above;
    }
    __syncthreads();
    prefix = prefix << bits | static_cast<unsigned>(shared.index);
    target -= shared.value;
    __syncthreads();
  }
  // Of the ties at the last key, as many as are still needed, the lowest ids first.
  const Weight each = weight_of(prefix);
  const Weight needed = (target + each - 1) / each;
  const int last = IdAt(shared, vocab, needed - 1, [&](int id) -> Weight {
    const unsigned key = KeyOf(logits[id]);
    return key == prefix && Keeps(kept, key, id) ? 1 : 0;
  });
  return {prefix, last};
}

extern "C" __global__ void __launch_bounds__(kThreads)
    sample(const float* __restrict__ all_logits, int vocab, const SampleOptions* __restrict__ all_options,
           int* __restrict__ tokens) {
  __shared__ Shared shared;
  const float* logits = all_logits + static_cast<long long>(blockIdx.x) * vocab;
  const SampleOptions options = all_options[blockIdx.x];

  // 1. The largest logit and the lowest id that has it; no draw from a damaged row.
  Weight best = 0;
  int damaged = 0;
  for (int id = threadIdx.x; id < vocab; id += kThreads) {
    const float logit = logits[id];
    damaged |= logit != logit ? 1 : 0;
    best = max(best, static_cast<Weight>(KeyOf(logit)) << 32 | static_cast<unsigned>(~id));
  }
  damaged = __syncthreads_or(damaged);
  best = Reduce(shared.reduce).Reduce(best, [](Weight a, Weight b) { return a > b ? a : b; });
  if (threadIdx.x == 0) {
    shared.value = best;
  }
  __syncthreads();
  best = shared.value;
  __syncthreads();
  const float largest = LogitOf(static_cast<unsigned>(best >> 32));
  if (damaged != 0 || isinf(largest) || options.temperature == 0) {
    if (threadIdx.x == 0) {
      tokens[blockIdx.x] =
          damaged != 0 || isinf(largest) ? -1 : static_cast<int>(~static_cast<unsigned>(best));
    }
    return;
  }

  // 2. The cuts of top-k and top-p.
  Cut cut = {0, vocab};
  if (options.top_k > 0 && options.top_k < vocab) {
    cut = CutAt(shared, logits, vocab, cut, options.top_k, [](unsigned) -> Weight { return 1; });
  }
  const auto weight_of = [largest](unsigned key) -> Weight { return Units(expf(LogitOf(key) - largest)); };
  if (options.top_p < 1) {
    Weight mine = 0;
    for (int id = threadIdx.x; id < vocab; id += kThreads) {
      const unsigned key = KeyOf(logits[id]);
      mine += Keeps(cut, key, id) ? weight_of(key) : 0;
    }
    const Weight total = Sum(shared, mine);
    const Weight target =
        static_cast<Weight>(ceil(static_cast<double>(options.top_p) * static_cast<double>(total)));
    cut = CutAt(shared, logits, vocab, cut, max(target, static_cast<Weight>(1)), weight_of);
  }

  // 3. One draw from what is left, at the temperature.
  const auto share = [&](int id) -> Weight {
    const float logit = logits[id];
    const bool kept = Keeps(cut, KeyOf(logit), id) && expf(logit - largest) >= options.min_p;
    return kept ? Units(expf((logit - largest) / options.temperature)) : 0;
  };
  Weight mine = 0;
  for (int id = threadIdx.x; id < vocab; id += kThreads) {
    mine += share(id);
  }
  const Weight total = Sum(shared, mine);
  const Weight draw = static_cast<Weight>(options.uniform * static_cast<double>(total));
  const int token = IdAt(shared, vocab, min(draw, total - 1), share);
  if (threadIdx.x == 0) {
    tokens[blockIdx.x] = token;
  }
}
