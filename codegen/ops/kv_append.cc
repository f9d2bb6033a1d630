// kv_append: rotate keys, keep exact copies, encode and store. A block serves a side of one KV head and a
// tile of tokens, so that an entry that is read once is compared with all of them.
#include "codegen/decode/kv_reader.h"
#include "codegen/ops/kv.h"
#include "codegen/text.h"
#include "vq/base/error.h"

namespace vqllm::internal {
namespace {

/// A side under its names.
struct Side {
  const KvSideLayout& layout;
  std::string name;   // "Key"
  std::string lower;  // "key"
};

std::string EncodeDenseWord(const KvPlan& plan, const Side& side) {
  const KvSideLayout& layout = side.layout;
  const bool cut = layout.slices * layout.SliceChannels() > plan.shape.head_dim;
  return FillText(R"(
    const int channel = $name$Channel(w / $slice_words$, w % $slice_words$ * 2);
    word = $guard$$pack$(x[t * kHeadDim + channel], x[t * kHeadDim + channel + 1])$end$;
  )",
                  {{"name", side.name},
                   {"slice_words", layout.SliceBits() / 32},
                   {"guard", cut ? "channel < kHeadDim ? " : ""},
                   {"pack", layout.format.dtype == DType::kBF16 ? "PackBfloat16" : "PackHalves"},
                   {"end", cut ? " : 0u" : ""}});
}

/// One warp a group: range, numbers, codes.
std::string EncodeIntegers(const KvPlan& plan, const Side& side) {
  const KvSideLayout& layout = side.layout;
  const Format& f = layout.format;
  const int levels = (1 << f.bits) - 1;
  const int group = layout.groups == 1 ? plan.shape.head_dim : f.group;
  const std::string numbers =
      f.symmetric ? fmt::format(
                        "const __half scale_bits = __float2half_rn(fmaxf(-low, high) / {}.0f);\n"
                        "const float scale = __half2float(scale_bits);\n"
                        "const float offset = -scale * {}.0f;\n"
                        "const unsigned number = __half_as_ushort(scale_bits);\n",
                        levels / 2, (levels + 1) / 2)
                  : fmt::format(
                        "const __half scale_bits = __float2half_rn((high - low) / {}.0f);\n"
                        "const __half offset_bits = __float2half_rn(low);\n"
                        "const float scale = __half2float(scale_bits);\n"
                        "const float offset = __half2float(offset_bits);\n"
                        "const unsigned number = __half_as_ushort(scale_bits) | "
                        "static_cast<unsigned>(__half_as_ushort(offset_bits)) << 16;\n",
                        levels);
  return FillText(R"(
    for (int i = threadIdx.x / 32; i < tokens * $groups$; i += kWarps) {
      const int t = i / $groups$;
      const int begin = i % $groups$ * $group$;
      const int end = min(begin + $group$, kHeadDim);
      float low = __int_as_float(0x7f800000);
      float high = -low;
      float check = 0;  // stays 0 unless there is a NaN or an infinity
      for (int c = begin + threadIdx.x % 32; c < end; c += 32) {
        const float value = x[t * kHeadDim + c];
        low = fminf(low, value);
        high = fmaxf(high, value);
        check += value * 0.0f;
      }
      #pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) {
        low = fminf(low, __shfl_xor_sync(0xffffffffu, low, distance));
        high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, distance));
        check += __shfl_xor_sync(0xffffffffu, check, distance);
      }
      low = fminf(fmaxf(low, -65504.0f), 65504.0f);  // the range of fp16
      high = fminf(fmaxf(high, -65504.0f), 65504.0f);
      $numbers$
      const bool broken = !(check == 0);
      for (int c = begin + threadIdx.x % 32; c < end; c += 32) {
        const float steps = (x[t * kHeadDim + c] - offset) / scale;
        codes[t * kHeadDim + c] = broken || scale == 0 ? 0u : __float2uint_rn(fminf(fmaxf(steps, 0.0f), $levels$.0f));
      }
      if (threadIdx.x % 32 == 0) codes[kTile * kHeadDim + i] = broken ? $nan$ : number;
    }
    __syncthreads();
  )",
                  {{"groups", layout.groups},
                   {"group", group},
                   {"numbers", numbers},
                   {"levels", levels},
                   {"nan", f.symmetric ? "0x7e00u" : "0x7e007e00u"}});
}

std::string PackIntegerWord(const KvPlan& plan, const Side& side) {
  const KvSideLayout& layout = side.layout;
  const Format& f = layout.format;
  const int per_word = 32 / f.bits;
  const bool cut = layout.slices * layout.SliceChannels() > plan.shape.head_dim;
  std::string numbers;
  if (f.symmetric) {
    numbers = FillText(R"(
      const int g = 2 * (w - $code_words$);
      word = codes[kTile * kHeadDim + t * $groups$ + g];
      if (g + 1 < $groups$) word |= codes[kTile * kHeadDim + t * $groups$ + g + 1] << 16;
    )",
                       {{"code_words", layout.code_words}, {"groups", layout.groups}});
  } else {
    numbers =
        fmt::format("word = codes[kTile * kHeadDim + t * {} + w - {}];\n", layout.groups, layout.code_words);
  }
  return FillText(R"(
    if (w < $code_words$) {
      #pragma unroll
      for (int i = 0; i < $per_word$; ++i) {
        const int channel = $name$Channel(w / $slice_words$, w % $slice_words$ * $per_word$ + $place$);
        $guard$word |= codes[t * kHeadDim + channel] << $bits$ * i;
      }
    } else {
      $numbers$
    }
  )",
                  {{"code_words", layout.code_words},
                   {"per_word", per_word},
                   {"name", side.name},
                   {"slice_words", layout.SliceBits() / 32},
                   // Nibbles hold channels 0 2 4 6 1 3 5 7 of a unit.
                   {"place", f.bits == 4 ? "i % 4 * 2 + i / 4" : "i"},
                   {"guard", cut ? "if (channel < kHeadDim) " : ""},
                   {"bits", f.bits},
                   {"numbers", numbers}});
}

/// The function that reads an entry of a table side.
std::string ReadEntryFunction(const Side& side) {
  const KvSideLayout& layout = side.layout;
  const int v = layout.unit_channels;
  const int vector_words = std::min(layout.entry_words, 4);
  constexpr const char* kComponents[] = {"x", "y", "z", "w"};
  std::string read;
  for (int vector = 0; vector < KvEntryVectors(layout); ++vector) {
    if (2 * vector * vector_words >= v) break;
    read += fmt::format("const {} part{} = __ldg(at{});\n", KvEntryType(layout), vector,
                        vector == 0 ? std::string() : fmt::format(" + {}", vector));
    for (int w = 0; w < vector_words; ++w) {
      const int channel = 2 * (vector * vector_words + w);
      if (channel >= v) break;
      const std::string component = vector_words == 1 ? std::string() : fmt::format(".{}", kComponents[w]);
      read += fmt::format("const float2 pair{} = HalfFloats(part{}{});\n", channel / 2, vector, component);
      read += fmt::format("entry[{}] = pair{}.x;\n", channel, channel / 2);
      if (channel + 1 < v) read += fmt::format("entry[{}] = pair{}.y;\n", channel + 1, channel / 2);
    }
  }
  return FillText(R"(
    __device__ __forceinline__ void Read$name$Entry(const $type$* __restrict__ at, float (&entry)[$v$]) {
      $read$
    }
  )",
                  {{"name", side.name}, {"type", KvEntryType(layout)}, {"v", v}, {"read", read}});
}

/// All entries against all tokens, a part of the entries a thread; then the best of the parts.
std::string EncodeTable(const KvPlan& plan, const Side& side) {
  const KvSideLayout& layout = side.layout;
  const Format& f = layout.format;
  const int v = f.subvector;
  const int vectors = KvEntryVectors(layout);
  const std::string type = KvEntryType(layout);
  const std::string read = fmt::format("float entry[{}];\nRead{}Entry(at, entry);\n", v, side.name);
  const int parts = std::max(1, plan.Threads() / layout.units);
  std::string text = FillText(R"(
    constexpr int kParts = $parts$;  // of the entries: a thread searches one of them for one subvector
    const int unit = threadIdx.x % k$name$Units;
    const int part = threadIdx.x / k$name$Units;
    unsigned* best_codes = codes + kTile * k$name$Units * $stages$;
    float* best_scores = reinterpret_cast<float*>(best_codes + kTile * k$name$Units * kParts);
    float rest[kTile][$v$];
    #pragma unroll
    for (int t = 0; t < kTile; ++t) {
      #pragma unroll
      for (int d = 0; d < $v$; ++d) {
        // What is not finite is nearest to nothing: it counts as 0.
        const float value = x[t * kHeadDim + unit * $v$ + d];
        rest[t][d] = isfinite(value) ? value : 0.0f;
      }
    }
  )",
                              {{"parts", parts}, {"name", side.name}, {"stages", f.stages()}, {"v", v}});
  int64_t base = 0;
  for (int stage = 0; stage < f.stages(); ++stage) {
    const int entries = f.entries[static_cast<size_t>(stage)];
    const std::string book = fmt::format("{}_books + {}head * {}", side.lower,
                                         base == 0 ? std::string() : fmt::format("{} + ", base),
                                         int64_t{entries} * layout.units * vectors);
    const bool last = stage + 1 == f.stages();
    const std::string next = FillText(R"(
      #pragma unroll
      for (int t = 0; t < kTile; ++t) {
        const $type$* at = book + (codes[(t * k$name$Units + unit) * $stages$ + $stage$] * k$name$Units + unit) * $vectors$;
        $read$
        #pragma unroll
        for (int d = 0; d < $v$; ++d) rest[t][d] -= entry[d];
      }
    )",
                                      {{"type", type},
                                       {"name", side.name},
                                       {"stages", f.stages()},
                                       {"stage", stage},
                                       {"vectors", vectors},
                                       {"read", read},
                                       {"v", v}});
    text += FillText(R"(
      {
        const $type$* book = $book$;
        float best[kTile];
        unsigned code[kTile] = {};
        #pragma unroll
        for (int t = 0; t < kTile; ++t) best[t] = __int_as_float(0xff800000);
        const int end = part < kParts ? min((part + 1) * $share$, $entries$) : 0;
        for (int e = part * $share$; e < end; ++e) {
          const $type$* at = book + (e * k$name$Units + unit) * $vectors$;
          $read$
          float norm = 0;
          #pragma unroll
          for (int d = 0; d < $v$; ++d) norm = fmaf(entry[d], entry[d], norm);
          #pragma unroll
          for (int t = 0; t < kTile; ++t) {
            float score = -0.5f * norm;
            #pragma unroll
            for (int d = 0; d < $v$; ++d) score = fmaf(rest[t][d], entry[d], score);
            // Strictly greater: of equal entries the lowest wins, here and among the parts.
            if (score > best[t]) {
              best[t] = score;
              code[t] = e;
            }
          }
        }
        if (part < kParts) {
          #pragma unroll
          for (int t = 0; t < kTile; ++t) {
            best_codes[(t * kParts + part) * k$name$Units + unit] = code[t];
            best_scores[(t * kParts + part) * k$name$Units + unit] = best[t];
          }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < kTile * k$name$Units; i += kThreads) {
          const int t = i / k$name$Units;
          const int first = t * kParts * k$name$Units + i % k$name$Units;
          unsigned found = best_codes[first];
          float top = best_scores[first];
          for (int p = 1; p < kParts; ++p) {
            if (best_scores[first + p * k$name$Units] > top) {
              top = best_scores[first + p * k$name$Units];
              found = best_codes[first + p * k$name$Units];
            }
          }
          codes[i * $stages$ + $stage$] = found;
        }
        __syncthreads();
        $next$
      }
    )",
                     {{"type", type},
                      {"book", book},
                      {"share", (entries + parts - 1) / parts},
                      {"entries", entries},
                      {"name", side.name},
                      {"vectors", vectors},
                      {"read", read},
                      {"v", v},
                      {"stages", f.stages()},
                      {"stage", stage},
                      {"next", last ? std::string() : next}});
    base += int64_t{plan.shape.kv_heads} * entries * layout.units * vectors;
  }
  return text;
}

std::string PackTableWord(const Side& side) {
  const KvSideLayout& layout = side.layout;
  const Format& f = layout.format;
  std::string stages;
  int bit = 0;
  for (int stage = 0; stage < f.stages(); ++stage) {
    stages +=
        fmt::format("word |= ShiftedInto(codes[(t * k{}Units + unit) * {} + {}], n * {} + {} - 32 * w);\n",
                    side.name, f.stages(), stage, layout.unit_bits, bit);
    bit += f.CodeBits(stage);
  }
  const bool cut = layout.slices * layout.slice_units > layout.units;
  return FillText(R"(
    // Subvectors whose codes lie in this word, in the order of slices.
    const int last = min((32 * w + 31) / $unit_bits$, $count$ - 1);
    for (int n = 32 * w / $unit_bits$; n <= last; ++n) {
      const int unit = n % $slice_units$ * k$name$Slices + n / $slice_units$;
      $guard$
      $stages$
    }
  )",
                  {{"unit_bits", layout.unit_bits},
                   {"count", layout.slices * layout.slice_units},
                   {"slice_units", layout.slice_units},
                   {"name", side.name},
                   {"guard", cut ? fmt::format("if (unit >= k{}Units) continue;", side.name) : std::string()},
                   {"stages", stages}});
}

std::string SideText(const KvPlan& plan, const Side& side) {
  std::string encode;
  std::string word;
  switch (side.layout.format.kind) {
    case FormatKind::kInt:
      encode = EncodeIntegers(plan, side);
      word = PackIntegerWord(plan, side);
      break;
    case FormatKind::kTable:
      encode = EncodeTable(plan, side);
      word = PackTableWord(side);
      break;
    default:
      word = EncodeDenseWord(plan, side);
  }
  return FillText(R"(
    $encode$
    for (int i = threadIdx.x; i < tokens * k$name$Record; i += kThreads) {
      const int t = i / k$name$Record;
      const int w = i % k$name$Record;
      const int position = first_position + t;
      if (position < 0) continue;
      unsigned word = 0;
      $word$
      const long long page = __ldg(pages + static_cast<long long>(blockIdx.z) * kPages + position / kPageTokens);
      $lower$s[((page * kKvHeads + head) * kPageTokens + position % kPageTokens) * k$name$Record + w] = word;
    }
  )",
                  {{"encode", encode}, {"name", side.name}, {"word", word}, {"lower", side.lower}});
}

std::string KeepExact(const KvPlan& plan) {
  if (!plan.KeepsExact()) return "";
  const KvShape& shape = plan.shape;
  const std::string kept = shape.Ring() == 0 ? "position < kSinks"
                           : shape.sinks > 0 ? "position < kSinks || position + kRing >= row.z"
                                             : "position + kRing >= row.z";
  const std::string place = shape.Ring() == 0 ? "position"
                            : shape.sinks > 0 ? "position < kSinks ? position : kSinks + position % kRing"
                                              : "position % kRing";
  return FillText(R"(
    if ($kept$) {
      const int place = $place$;
      const long long copy = (static_cast<long long>(row.w) * kKvHeads + head) * kExactTokens + place;
      reinterpret_cast<__half*>(exact)[(2 * copy + (is_key ? 0 : 1)) * kHeadDim + c] = __float2half_rn(value);
    }
  )",
                  {{"kept", kept}, {"place", place}});
}

}  // namespace

KernelText EmitKvAppend(const KvPlan& plan) {
  const KvReaderText key = EmitKvRecord(plan.key.layout, "Key");
  const KvReaderText value = EmitKvRecord(plan.value.layout, "Value");
  KernelText out;
  for (const KvSidePlan* side : {&plan.key, &plan.value}) {
    const Format& f = side->layout.format;
    if (f.kind == FormatKind::kTable) out.blocks.insert({"pairs", "floats_f16", "shifted_into"});
    if (f.kind == FormatKind::kDense) out.blocks.insert(f.dtype == DType::kBF16 ? "pack_bf16" : "pack_f16");
  }
  out.constants = KvConstants(plan) +
                  FillText(R"(

    constexpr int kTile = $tile$;  // tokens of a block
    constexpr int kWarps = $warps$;
    constexpr int kThreads = 32 * kWarps;
  )",
                           {{"tile", plan.tile}, {"warps", plan.warps}}) +
                  "\n" + key.constants + value.constants;
  out.functions = KvRotation(plan) + "\n" + key.functions + value.functions;
  for (const Side& side : {Side{plan.key.layout, "Key", "key"}, Side{plan.value.layout, "Value", "value"}}) {
    if (side.layout.format.kind == FormatKind::kTable)
      out.functions += fmt::format("\n{}", ReadEntryFunction(side));
  }
  const bool rotates = plan.shape.rope_dim > 0 && !plan.shape.keys_before_rope;
  out.kernels = FillText(R"(
    extern "C" __global__ void __launch_bounds__(kThreads, $min_blocks$)
    kv_append($parameters$) {
      extern __shared__ __align__(16) float x[];  // [kTile][kHeadDim]
      unsigned* codes = reinterpret_cast<unsigned*>(x + kTile * kHeadDim);

      // 1. The row, side, KV head and tokens of this block.
      const int4 row = rows[blockIdx.z];
      const bool is_key = blockIdx.x < kKvHeads;
      const int head = blockIdx.x % kKvHeads;
      const int first = blockIdx.y * kTile;
      const int tokens = min(kTile, row.y - first);
      if (tokens <= 0) return;
      const int first_position = row.z - row.y + first;

      // 2. Values as fp32, keys rotated$to$; exact copies.
      for (int i = threadIdx.x; i < kTile * kHeadDim; i += kThreads) {
        const int t = i / kHeadDim;
        const int c = i % kHeadDim;
        const int position = first_position + t;
        x[i] = 0;
        if (t >= tokens || position < 0) continue;
        const $element$* from = (is_key ? k : v) + (static_cast<long long>(row.x + first + t) * kKvHeads + head) * kHeadDim;
        const float value = $read$;
        x[i] = value;
        $exact$
      }
      __syncthreads();

      // 3. Codes, packed into records.
      if (is_key) {
        $key$
      } else {
        $value$
      }
    }
  )",
                         {{"min_blocks", plan.min_blocks},
                          {"parameters", KvParameters(plan, 0)},
                          {"to", rotates ? " to their positions" : " when they are read, not here"},
                          {"element", ElementType(plan.activation)},
                          {"read", rotates ? "is_key ? Rotated(from, c, rope, position) : ToFloat(from[c])"
                                           : "ToFloat(from[c])"},
                          {"exact", KeepExact(plan)},
                          {"key", SideText(plan, {plan.key.layout, "Key", "key"})},
                          {"value", SideText(plan, {plan.value.layout, "Value", "value"})}});
  return out;
}

}  // namespace vqllm::internal
