// E8P: a code picks one of 256 vectors of absolute values and eight signs.
#include "codegen/decode/decoder.h"
#include "codegen/text.h"

namespace vqllm::internal {

DecoderText EmitLattice(const Plan& plan) {
  const StageTier& tier = plan.stages[0];
  const bool shared = tier.shared > 0;
  const bool two = plan.format.stages() == 2;
  DecoderText out;
  out.blocks = {"lattice_e8p", "masked_half", "pairs", "pairs_add", "pairs_fma"};
  if (shared) {
    out.constants = FillText(R"(
      constexpr int kEntries = 256;   // vectors of absolute values, 4 bytes each
      constexpr int kCopies = $copies$;  // of each entry in shared memory
    )",
                             {{"copies", tier.replicas}});
  }
  out.functions = FillText(
      R"(
    // Where the packed vectors are read from$factor_comment$.
    struct Codebook {
      const unsigned* entries;
      $factor_member$
    };

    // $load_comment$
    $load_head$
      Codebook book;
      $load$
      $factor_load$
      return book;
    }

    // One unit: eight weights$stages$.
    __device__ __forceinline__ void DecodeUnit(const unsigned* words, int unit, const Codebook& book,
                                               unsigned (&pairs)[4]) {
      $decode$
    }
  )",
      {{"factor_comment", two ? ", and the factor of the second stage, twice as fp16" : ""},
       {"factor_member", two ? "unsigned factor;" : ""},
       {"load_head",
        FunctionHead("__device__ __forceinline__ Codebook LoadCodebook",
                     {"const unsigned* __restrict__ codebooks",
                      two ? "const float* __restrict__ factors" : "", shared ? "unsigned* shared" : ""})},
       {"load_comment",
        shared ? "Copies the table into shared memory, each entry kCopies times; a barrier must follow."
               : "The table stays in global memory, whence the caches serve it."},
       {"load", shared ? R"(
                              for (int i = threadIdx.x; i < kEntries * kCopies; i += kThreads) {
                                shared[i] = __ldg(codebooks + i / kCopies);
                              }
                              book.entries = shared + threadIdx.x % kCopies;
                            )"
                       : "book.entries = codebooks;"},
       {"factor_load", two ? "book.factor = AsPair(__float2half2_rn(factors[1]));" : ""},
       {"stages", two ? ", the second code refines the first" : ""},
       {"decode", two ? FillText(R"(
                              const unsigned codes = words[unit];
                              unsigned fine[4];
                              DecodeE8P($first$, codes & 0xff, pairs);
                              DecodeE8P($second$, codes >> 16 & 0xff, fine);
                              #pragma unroll
                              for (int j = 0; j < 4; ++j) pairs[j] = FmaPairs(fine[j], book.factor, pairs[j]);
                            )",
                                 {{"first", shared ? "book.entries[(codes >> 8 & 0xff) * kCopies]"
                                                   : "__ldg(book.entries + (codes >> 8 & 0xff))"},
                                  {"second", shared ? "book.entries[(codes >> 24) * kCopies]"
                                                    : "__ldg(book.entries + (codes >> 24))"}})
                      : FillText(R"(
                              const unsigned code = words[unit / 2] >> (unit % 2 * 16);
                              DecodeE8P($first$, code & 0xff, pairs);
                            )",
                                 {{"first", shared ? "book.entries[(code >> 8 & 0xff) * kCopies]"
                                                   : "__ldg(book.entries + (code >> 8 & 0xff))"}})}});
  return out;
}

}  // namespace vqllm::internal
