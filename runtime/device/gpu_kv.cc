#include "runtime/device/gpu_kv.h"

#include <algorithm>
#include <array>
#include <limits>

#include "vq/base/check.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

void GpuBatch::Reserve(const std::array<int64_t, kParts>& words) {
  bool grows = false;
  for (size_t part = 0; part < words.size(); ++part) {
    // Parts begin at multiples of 16 bytes: rows are read as int4.
    if (words[part] <= capacity_[part]) continue;
    capacity_[part] = std::max<int64_t>(4, TokenBucket(words[part]));
    grows = true;
  }
  if (!grows) return;
  int64_t total = 0;
  for (size_t part = 0; part < words.size(); ++part) {
    begin_[part] = total;
    total += capacity_[part];
  }
  driver_.Synchronise();
  buffer_ = GpuBuffer(driver_, 4 * total, "batch");
  words_.assign(static_cast<size_t>(total), 0);
  ++generation_;
}

GpuRows GpuBatch::WriteRows(std::span<const KvRow> rows, Part rows_part, Part pages_part,
                            int64_t pages_of_row, int page_tokens) {
  GpuRows written = {
      .rows = At(rows_part), .pages = At(pages_part), .count = static_cast<int64_t>(rows.size())};
  auto row_at = words_.begin() + begin_[rows_part];
  auto page_at = words_.begin() + begin_[pages_part];
  for (const KvRow& row : rows) {
    const int64_t length = row.past + row.count;
    written.most_tokens = std::max(written.most_tokens, row.count);
    written.longest = std::max(written.longest, length);
    for (const int64_t word : {row.begin, row.count, length, int64_t{row.slot}})
      *row_at++ = static_cast<int32_t>(word);
    const int64_t pages = CeilDiv(length, page_tokens);
    VQLLM_CHECK(pages <= static_cast<int64_t>(row.pages.size()) && pages <= pages_of_row, "{} tokens",
                length);
    std::copy_n(row.pages.begin(), pages, page_at);
    page_at += pages_of_row;
  }
  return written;
}

void GpuBatch::Upload(const Batch& batch, int64_t pages_of_row, int page_tokens) {
  std::vector<KvRow> pieces;
  for (const KvRow& row : batch.rows) {
    for (int64_t done = 0; done < row.count; done += kAttentionTokens) {
      KvRow piece = row;
      piece.begin += done;
      piece.past += done;
      piece.count = std::min(row.count - done, kAttentionTokens);
      pieces.push_back(piece);
    }
  }
  tokens_ = static_cast<int64_t>(batch.ids.size());
  const int64_t rows = static_cast<int64_t>(batch.rows.size());
  const int64_t piece_rows = static_cast<int64_t>(pieces.size());
  Reserve({tokens_, static_cast<int64_t>(batch.picked.size()), 4 * rows, pages_of_row * rows, 4 * piece_rows,
           pages_of_row * piece_rows});
  std::copy(batch.ids.begin(), batch.ids.end(), words_.begin() + begin_[kIds]);
  std::transform(batch.picked.begin(), batch.picked.end(), words_.begin() + begin_[kPicked],
                 [](int64_t token) { return static_cast<int32_t>(token); });
  sequences_ = WriteRows(batch.rows, kRows, kPages, pages_of_row, page_tokens);
  pieces_ = WriteRows(pieces, kPieceRows, kPiecePages, pages_of_row, page_tokens);
  driver_.Upload(buffer_.address(), words_.data(), 4 * static_cast<int64_t>(words_.size()));
}

GpuRope::GpuRope(GpuDriver& driver, const RopeTable& table) : dim_(table.dim), positions_(table.positions()) {
  std::vector<float> angles;
  angles.reserve(2 * table.cos.size());
  for (size_t i = 0; i < table.cos.size(); ++i) {
    angles.push_back(table.cos[i]);
    angles.push_back(table.sin[i]);
  }
  angles_ = UploadAll(driver, angles, "rope");
}

KvShape MakeKvShape(const KvLayerSpec& spec, const KvUse& use) {
  KvShape shape;
  shape.key = spec.key.format;
  shape.value = spec.value.format;
  shape.kv_heads = spec.kv_heads;
  shape.head_dim = spec.head_dim;
  shape.page_tokens = spec.page_tokens;
  shape.sinks = spec.sinks;
  shape.window = spec.window;
  shape.sliding_window =
      static_cast<int>(std::min<int64_t>(spec.sliding_window, std::numeric_limits<int>::max()));
  shape.keys_before_rope = spec.keys_before_rope;
  shape.context = static_cast<int>(std::min<int64_t>(use.context, std::numeric_limits<int>::max()));
  shape.chunk = static_cast<int>(std::min<int64_t>(use.context, kMaxBatchTokens));
  return shape;
}

const GpuKvKernels::Program& GpuKvKernels::Get(KvOp op, int64_t q_tokens, int64_t rows, int rope_dim) {
  const std::string key = fmt::format("{} {} {} {}", static_cast<int>(op), q_tokens, rows, rope_dim);
  const auto found = programs_.find(key);
  if (found != programs_.end()) return found->second;
  KvRequest request;
  request.op = op;
  request.shape = shape_;
  request.shape.rope_dim = rope_dim;
  request.group = group_;
  request.q_tokens = static_cast<int>(q_tokens);
  request.rows = static_cast<int>(rows);
  request.gpu = kernels_.driver().gpu();
  const GeneratedKv generated = Generate(request);
  const CachedKernel built = Build(generated, kernels_.cache());
  const std::string format = shape_.key.name + (shape_.value == shape_.key ? "" : "/" + shape_.value.name);
  const std::string serves = fmt::format("{} {}", ToString(op), format);
  return programs_
      .emplace(key, Program{generated.plan,
                            kernels_.Load(built, generated.FileName(), serves, generated.plan.launches)})
      .first->second;
}

GpuKv::GpuKv(GpuKernels& kernels, std::shared_ptr<GpuKvKernels> programs, const KvLayerSpec& spec,
             const KvShape& shape, const KvUse& use)
    : kernels_(kernels), programs_(std::move(programs)), shape_(shape) {
  GpuDriver& driver = kernels.driver();
  const KvSideLayout key = MakeKvSideLayout(spec.key.format, spec.head_dim);
  const KvSideLayout value = MakeKvSideLayout(spec.value.format, spec.head_dim);
  const int64_t records = use.pages * spec.page_tokens * spec.kv_heads;
  keys_ = GpuBuffer(driver, 4 * records * key.RecordWords(), "keys");
  values_ = GpuBuffer(driver, 4 * records * value.RecordWords(), "values");
  const int64_t exact = int64_t{use.slots} * spec.kv_heads * shape.ExactTokens() * 2 * spec.head_dim * 2;
  if (exact > 0) exact_ = GpuBuffer(driver, exact, "exact copies");
  key_books_ = UploadAll(driver, PackKvCodebooks(key, spec.key, spec.kv_heads), "key codebooks");
  value_books_ = UploadAll(driver, PackKvCodebooks(value, spec.value, spec.kv_heads), "value codebooks");
  bytes_per_token_ = 4 * spec.kv_heads * (key.RecordWords() + value.RecordWords());
  fixed_bytes_ = exact + key_books_.bytes() + value_books_.bytes();
}

GpuArguments GpuKv::Arguments(const GpuRows& rows, const GpuRope& rope) const {
  return {{"rows", rows.rows},
          {"pages", rows.pages},
          {"keys", keys_.address()},
          {"values", values_.address()},
          {"exact", exact_.address()},
          {"key_books", key_books_.address()},
          {"value_books", value_books_.address()},
          {"rope", rope.address()}};
}

const GpuKvKernels::Program& GpuKv::ProgramOf(KvOp op, const GpuRows& rows, const GpuRope& rope) const {
  const int64_t tokens = std::min<int64_t>(TokenBucket(rows.most_tokens), shape_.chunk);
  return programs_->Get(op, tokens, TokenBucket(rows.count), rope.dim());
}

void GpuKv::Append(DeviceAddress k, DeviceAddress v, const GpuBatch& batch, const GpuRope& rope) {
  const GpuRows& rows = batch.sequences();
  const GpuKvKernels::Program& program = ProgramOf(KvOp::kAppend, rows, rope);
  GpuArguments arguments = Arguments(rows, rope);
  arguments["k"] = k;
  arguments["v"] = v;
  std::vector<KernelLaunch> launches = program.program.launches;
  launches[0].grid_y = static_cast<int>(CeilDiv(rows.most_tokens, program.plan.tile));
  launches[0].grid_z = static_cast<int>(rows.count);
  kernels_.Launch(program.program, launches, arguments);
}

void GpuKv::Attend(DeviceAddress q, const GpuBatch& batch, const GpuRope& rope, DeviceAddress out,
                   GpuScratch& scratch) const {
  const GpuRows& rows = batch.pieces();
  const GpuKvKernels::Program& program = ProgramOf(KvOp::kAttention, rows, rope);
  const KvPlan& plan = program.plan;
  GpuArguments arguments = Arguments(rows, rope);
  arguments["q"] = q;
  arguments["out"] = out;
  if (plan.Merges()) {
    const int64_t floats = plan.PartialFloats(static_cast<int>(rows.count));
    arguments["partial"] = scratch.Get("attention", 4 * floats);
    arguments["partial_lse"] = scratch.Get("attention lse", 4 * floats / shape_.head_dim);
  }
  std::vector<KernelLaunch> launches = program.program.launches;
  const int64_t splits = std::min<int64_t>(plan.splits, CeilDiv(rows.longest, plan.split_tokens));
  launches[0].grid_y = static_cast<int>(splits) + (plan.ReadsExact() ? 1 : 0);
  for (KernelLaunch& launch : launches) launch.grid_z = static_cast<int>(rows.count);
  kernels_.Launch(program.program, launches, arguments);
}

int64_t GpuKv::LaunchKey(const GpuBatch& batch) const {
  // Splits change at page boundaries at most.
  return CeilDiv(batch.sequences().longest, shape_.page_tokens);
}

}  // namespace vqllm
