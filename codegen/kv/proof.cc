#include "codegen/kv/proof.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "codegen/kv/proof_places.h"
#include "kernels/cpu/reference.h"
#include "vq/base/check.h"
#include "vq/base/rng.h"

namespace vqllm {
namespace {

using internal::CopyAt;
using internal::HasCopy;
using internal::RecordAt;

constexpr double kFloatUnit = 0x1p-24;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

uint16_t Store(DType type, float value) {
  return type == DType::kBF16 ? FloatToBFloat16Bits(value) : FloatToHalfBits(value);
}
float Read(DType type, uint16_t bits) {
  return type == DType::kBF16 ? BFloat16BitsToFloat(bits) : HalfBitsToFloat(bits);
}

/// How much larger a channel is than others: outliers and constants as real keys have them.
float ChannelScale(const KvProofOptions& options, int channel) {
  return !options.outliers ? 1.0f : channel % 11 == 3 ? 30.0f : 1.0f;
}
bool Constant(const KvProofOptions& options, int channel) { return options.outliers && channel % 7 == 2; }

cpu::KvSide RandomSide(const Format& f, const KvShape& shape, const KvProofOptions& options, Rng& rng) {
  cpu::KvSide side;
  side.format = f;
  for (int stage = 0; f.kind == FormatKind::kTable && stage < f.stages(); ++stage) {
    std::vector<Half>& books = side.codebooks.emplace_back();
    const int units = shape.head_dim / f.subvector;
    for (int book = 0; book < shape.kv_heads * units; ++book) {
      for (int i = 0; i < f.entries[static_cast<size_t>(stage)] * f.subvector; ++i) {
        const int channel = book % units * f.subvector + i % f.subvector;
        const float value = Constant(options, channel) ? 0.5f : rng.Normal() * ChannelScale(options, channel);
        books.push_back(Half(value * std::pow(0.4f, static_cast<float>(stage))));
      }
    }
  }
  return side;
}

KvToken RandomToken(const KvSideLayout& layout, const KvProofOptions& options, Rng& rng) {
  const Format& f = layout.format;
  KvToken token;
  if (f.kind == FormatKind::kTable) {
    for (int unit = 0; unit < layout.units; ++unit) {
      for (const int entries : f.entries)
        token.codes.push_back(static_cast<uint32_t>(rng.Below(static_cast<uint64_t>(entries))));
    }
    return token;
  }
  for (int c = 0; c < layout.head_dim; ++c) {
    if (f.kind == FormatKind::kInt) {
      token.codes.push_back(static_cast<uint32_t>(rng.Below(uint64_t{1} << f.bits)));
    } else {
      const float value = Constant(options, c) ? 0.5f : rng.Normal() * ChannelScale(options, c);
      token.codes.push_back(Store(f.dtype, value));
    }
  }
  for (int g = 0; g < layout.groups; ++g) {
    const float range = options.outliers && g % 2 == 1 ? 30.0f : 2.0f;
    token.scales.push_back(
        FloatToHalfBits(range * rng.Uniform(0.5f, 1.0f) / static_cast<float>(1 << f.bits)));
    if (!f.symmetric) token.offsets.push_back(FloatToHalfBits(-range / 2 * rng.Uniform(0.5f, 1.0f)));
  }
  return token;
}

std::vector<float> RopeRows(const KvShape& shape) {
  std::vector<float> rope;
  for (int position = 0; position < shape.context; ++position) {
    for (int j = 0; j < shape.rope_dim / 2; ++j) {
      const double angle = position * std::pow(10000.0, -2.0 * j / shape.rope_dim);
      rope.push_back(static_cast<float>(std::cos(angle)));
      rope.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return rope;
}

std::vector<KvProofRow> DefaultRows(const KvPlan& plan) {
  std::vector<KvProofRow> rows;
  for (int r = 0; r < plan.rows; ++r) {
    const int length = plan.rows == 1 ? plan.shape.context
                                      : static_cast<int>(int64_t{plan.shape.context} * r / (plan.rows - 1));
    rows.push_back({plan.q_tokens, length});
  }
  return rows;
}

/// Everything but the contents of the cache.
KvProofCase Frame(const KvPlan& plan, const KvProofOptions& options, Rng& rng) {
  const KvShape& shape = plan.shape;
  KvProofCase proof;
  proof.sequences = options.rows.empty() ? DefaultRows(plan) : options.rows;
  int64_t begin = 1;
  std::vector<int32_t> pool;
  for (size_t r = 0; r < proof.sequences.size(); ++r) {
    const KvProofRow& row = proof.sequences[r];
    VQLLM_CHECK(row.count <= plan.q_tokens && row.length <= shape.context);
    proof.rows.insert(proof.rows.end(), {static_cast<int32_t>(begin), row.count, row.length,
                                         static_cast<int32_t>(proof.sequences.size() - 1 - r)});
    begin += row.count;
    proof.pool_pages += (row.length + shape.page_tokens - 1) / shape.page_tokens;
  }
  proof.activation_rows = begin + 1;
  ++proof.pool_pages;
  pool.resize(static_cast<size_t>(proof.pool_pages));
  std::iota(pool.begin(), pool.end(), 0);
  for (size_t i = pool.size(); i > 1; --i) std::swap(pool[i - 1], pool[rng.Below(i)]);
  proof.pages.assign(proof.sequences.size() * static_cast<size_t>(shape.Pages()), -1);
  for (size_t r = 0; r < proof.sequences.size(); ++r) {
    for (int p = 0; p * shape.page_tokens < proof.sequences[r].length; ++p) {
      proof.pages[r * static_cast<size_t>(shape.Pages()) + static_cast<size_t>(p)] = pool.back();
      pool.pop_back();
    }
  }
  proof.key = RandomSide(shape.key, shape, options, rng);
  proof.value = RandomSide(shape.value, shape, options, rng);
  proof.key_books = PackKvCodebooks(plan.key.layout, proof.key, shape.kv_heads);
  proof.value_books = PackKvCodebooks(plan.value.layout, proof.value, shape.kv_heads);
  proof.rope = RopeRows(shape);
  const auto words = [&](const KvSideLayout& layout) {
    return static_cast<size_t>(proof.pool_pages * shape.kv_heads * shape.page_tokens * layout.RecordWords());
  };
  // What no token fills reads as NaN in every format that can say so.
  proof.keys.assign(words(plan.key.layout), 0x7fff7fffu);
  proof.values.assign(words(plan.value.layout), 0x7fff7fffu);
  if (plan.KeepsExact()) {
    proof.exact.assign(
        proof.sequences.size() * static_cast<size_t>(shape.kv_heads * shape.ExactTokens() * shape.head_dim),
        0x7fff7fffu);
  }
  return proof;
}

/// Keys and values of one row and head in both forms.
struct Tokens {
  std::vector<std::vector<float>> key[2];  // [stored, exact][position]
  std::vector<std::vector<float>> value[2];
};

Tokens FillRow(const KvPlan& plan, const KvProofOptions& options, size_t row, int head, Rng& rng,
               KvProofCase& proof) {
  const KvShape& shape = plan.shape;
  const int length = proof.sequences[row].length;
  Tokens tokens;
  for (int position = 0; position < length; ++position) {
    const auto store = [&](const KvSideLayout& layout, const cpu::KvSide& side,
                           std::vector<uint32_t>& words) {
      const KvToken token = RandomToken(layout, options, rng);
      const size_t at = RecordAt(plan, proof, layout, row, head, position);
      PackKvToken(layout, token, std::span(words).subspan(at, static_cast<size_t>(layout.RecordWords())));
      return DecodeKvToken(layout, side, head, token);
    };
    tokens.key[0].push_back(store(plan.key.layout, proof.key, proof.keys));
    tokens.value[0].push_back(store(plan.value.layout, proof.value, proof.values));
    for (int part = 0; part < 2; ++part) {
      std::vector<float> values(static_cast<size_t>(shape.head_dim));
      if (HasCopy(shape, length, position)) {
        const size_t at =
            CopyAt(plan, proof, row, head, position) + static_cast<size_t>(part * shape.head_dim);
        for (size_t c = 0; c < values.size(); ++c) {
          const uint16_t bits = FloatToHalfBits(rng.Normal() * ChannelScale(options, static_cast<int>(c)));
          values[c] = HalfBitsToFloat(bits);
          uint32_t& word = proof.exact[(at + c) / 2];
          word = (at + c) % 2 == 0 ? (word & 0xffff0000u) | bits : (word & 0xffffu) | uint32_t{bits} << 16;
        }
      }
      (part == 0 ? tokens.key : tokens.value)[1].push_back(std::move(values));
    }
  }
  return tokens;
}

}  // namespace

cpu::RopeTable internal::RopeTableOf(const KvShape& shape, const std::vector<float>& rope) {
  cpu::RopeTable table;
  table.dim = shape.rope_dim;
  for (size_t i = 0; i < rope.size(); i += 2) {
    table.cos.push_back(rope[i]);
    table.sin.push_back(rope[i + 1]);
  }
  return table;
}

namespace {

/// The answer of one query head at a position, and its tolerance, into [head_dim].
void Answer(const KvPlan& plan, const Tokens& tokens, const cpu::RopeTable& rope, std::vector<float> q,
            int position, int past, double* expected, double* tolerance) {
  const KvShape& shape = plan.shape;
  const size_t d = static_cast<size_t>(shape.head_dim);
  if (shape.rope_dim > 0) reference::Rotate(rope, position, q.data());
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  std::vector<float> keys;
  std::vector<float> values;
  double largest_error = 0;
  // Products, sums over channels and lanes, the rotation of the query; turning a key adds as many again.
  const double unit = plan.activation == DType::kBF16 ? 0x1p-8 : 0x1p-11;
  const bool tensor = plan.op == KvOp::kPrefill;  // operands of an mma are rounded to the activation's type
  const double chain = (static_cast<double>(shape.head_dim) + 16) * kFloatUnit +
                       (tensor ? (shape.keys_before_rope ? 3 : 2) * unit : 0);
  for (int token = 0; token <= position; ++token) {
    const reference::KvSource source =
        plan.op == KvOp::kPrefill && shape.exact_chunk
            ? reference::SourceOf(shape.sinks, shape.window, shape.sliding_window, position, token, past)
            : reference::SourceOf(shape.sinks, shape.window, shape.sliding_window, position, token);
    if (source == reference::KvSource::kUnseen) continue;
    const size_t exact = source == reference::KvSource::kExact ? 1 : 0;
    std::vector<float> key = tokens.key[exact][static_cast<size_t>(token)];
    double magnitude = 0;
    for (size_t c = 0; c < d; ++c) {
      const size_t half = static_cast<size_t>(shape.rope_dim / 2);
      double factor = std::fabs(q[c]);
      if (shape.keys_before_rope && c < 2 * half) factor += std::fabs(q[c < half ? c + half : c - half]);
      magnitude += factor * std::fabs(key[c]);
    }
    largest_error = std::max(largest_error, scale * magnitude * chain);
    if (shape.keys_before_rope && shape.rope_dim > 0) reference::Rotate(rope, token, key.data());
    const std::vector<float>& value = tokens.value[exact][static_cast<size_t>(token)];
    keys.insert(keys.end(), key.begin(), key.end());
    values.insert(values.end(), value.begin(), value.end());
  }
  const int64_t count = static_cast<int64_t>(keys.size() / d);
  std::vector<float> out(d);
  std::vector<float> total(d);  // sums of |p v|
  const MatrixView<const float> key_view(keys.data(), count, shape.head_dim, shape.head_dim);
  reference::Attend(q, key_view, {values.data(), count, shape.head_dim, shape.head_dim}, scale, out);
  for (float& value : values) value = std::fabs(value);
  reference::Attend(q, key_view, {values.data(), count, shape.head_dim, shape.head_dim}, scale, total);
  // A histogram adds up probabilities by entry, then what the entries make of them.
  const int histogram = plan.value.Codes() ? plan.value.Entries() : 0;
  for (size_t c = 0; c < d; ++c) {
    const double error =
        total[c] * (std::expm1(2 * largest_error) +
                    (static_cast<double>(count + histogram) + 64) * kFloatUnit + (tensor ? 2 * unit : 0)) +
        (tensor ? 0x1p-24 : 0);
    expected[c] = out[c];
    tolerance[c] = error + unit * (std::fabs(out[c]) + error) + 0x1p-25;
  }
}

}  // namespace

KvProofCase MakeKvProofCase(const KvPlan& plan, const KvProofOptions& options) {
  Rng rng(options.seed);
  KvProofCase proof = Frame(plan, options, rng);
  const KvShape& shape = plan.shape;
  const auto random = [&](int64_t width, float size) {
    std::vector<uint16_t> values;
    for (int64_t i = 0; i < proof.activation_rows * width; ++i)
      values.push_back(
          Store(plan.activation,
                rng.Normal() * size * ChannelScale(options, static_cast<int>(i % shape.head_dim))));
    return values;
  };
  if (plan.op == KvOp::kAppend) {
    proof.k = random(int64_t{shape.kv_heads} * shape.head_dim, 1);
    proof.v = random(int64_t{shape.kv_heads} * shape.head_dim, 1);
    return proof;
  }
  const int64_t width = int64_t{plan.Heads()} * shape.head_dim;
  for (int64_t i = 0; i < proof.activation_rows * width; ++i)
    proof.q.push_back(Store(plan.activation, rng.Normal() * options.query_scale));
  proof.expected.assign(proof.q.size(), kNone);
  proof.tolerance.assign(proof.q.size(), 0);
  const cpu::RopeTable rope = internal::RopeTableOf(shape, proof.rope);
  for (size_t row = 0; row < proof.sequences.size(); ++row) {
    const KvProofRow& sequence = proof.sequences[row];
    for (int head = 0; head < shape.kv_heads; ++head) {
      const Tokens tokens = FillRow(plan, options, row, head, rng, proof);
      for (int t = 0; t < sequence.count; ++t) {
        for (int g = 0; g < plan.group; ++g) {
          const int64_t at = (proof.rows[4 * row] + t) * width + (head * plan.group + g) * shape.head_dim;
          std::vector<float> q;
          for (int c = 0; c < shape.head_dim; ++c)
            q.push_back(Read(plan.activation, proof.q[static_cast<size_t>(at + c)]));
          const int position = sequence.length - sequence.count + t;
          if (position < 0) {
            std::fill_n(&proof.expected[static_cast<size_t>(at)], shape.head_dim, 0.0);
            continue;
          }
          Answer(plan, tokens, rope, std::move(q), position, sequence.length - sequence.count,
                 &proof.expected[static_cast<size_t>(at)], &proof.tolerance[static_cast<size_t>(at)]);
        }
      }
    }
  }
  return proof;
}

ProofResult CheckKvProof(const KvPlan& plan, const KvProofCase& proof, const std::vector<uint16_t>& out) {
  VQLLM_CHECK(out.size() == proof.expected.size(), "{} of {}", out.size(), proof.expected.size());
  ProofResult result;
  double largest = 0;
  double worst = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    if (std::isnan(proof.expected[i])) continue;
    largest = std::max(largest, std::fabs(proof.expected[i]));
    result.tolerance = std::max(result.tolerance, proof.tolerance[i]);
    const double error = std::fabs(Read(plan.activation, out[i]) - proof.expected[i]);
    const double share = error == 0 ? 0 : std::isfinite(error) ? error / proof.tolerance[i] : HUGE_VAL;
    worst = std::max(worst, std::isfinite(error) ? error : HUGE_VAL);
    if (share > result.worst_share) {
      result.worst_share = share;
      result.worst_index = static_cast<int64_t>(i);
    }
  }
  const double scale = largest > 0 ? largest : 1;
  result.max_relative_error = worst / scale;
  result.tolerance /= scale;
  result.passed = result.worst_share <= 1;
  return result;
}

}  // namespace vqllm
