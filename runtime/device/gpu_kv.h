#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/kv/generate.h"
#include "runtime/device/device.h"
#include "runtime/device/gpu_kernels.h"
#include "runtime/device/gpu_matrix.h"

namespace vqllm {

/// Rows as the kernels on a KV cache read them (codegen/kv/layout.h), with what the host must know to launch.
struct GpuRows {
  DeviceAddress rows = 0;   ///< int4 [count]
  DeviceAddress pages = 0;  ///< int32 [count][pages of a row]
  int64_t count = 0;
  int64_t most_tokens = 0;  ///< new tokens of a row
  int64_t longest = 0;      ///< tokens of a sequence, new ones counted
};

/// What differs from batch to batch, in one piece of device memory.
class GpuBatch {
 public:
  explicit GpuBatch(GpuDriver& driver) : driver_(driver) {}

  /// Uploads a batch whose page tables have `pages_of_row` entries a row.
  void Upload(const Batch& batch, int64_t pages_of_row, int page_tokens);

  DeviceAddress ids() const { return At(kIds); }
  DeviceAddress picked() const { return At(kPicked); }
  /// The sequences.
  const GpuRows& sequences() const { return sequences_; }
  /// The same cut into pieces of at most kAttentionTokens new tokens, which is what op attention takes.
  const GpuRows& pieces() const { return pieces_; }
  int64_t tokens() const { return tokens_; }
  /// Counts moves of the buffer: addresses of an older generation are stale.
  int64_t generation() const { return generation_; }

  static constexpr int64_t kAttentionTokens = 8;

 private:
  enum Part { kIds, kPicked, kRows, kPages, kPieceRows, kPiecePages, kParts };

  void Reserve(const std::array<int64_t, kParts>& words);
  GpuRows WriteRows(std::span<const KvRow> rows, Part rows_part, Part pages_part, int64_t pages_of_row,
                    int page_tokens);
  DeviceAddress At(Part part) const {
    return buffer_.address() + static_cast<DeviceAddress>(4 * begin_[part]);
  }

  GpuDriver& driver_;
  GpuBuffer buffer_;
  std::vector<int32_t> words_;
  std::array<int64_t, kParts> capacity_ = {};  // in words: addresses stay while batches fit
  std::array<int64_t, kParts> begin_ = {};
  GpuRows sequences_, pieces_;
  int64_t tokens_ = 0;
  int64_t generation_ = 0;
};

class GpuRope final : public DeviceRope {
 public:
  GpuRope(GpuDriver& driver, const RopeTable& table);
  DeviceAddress address() const { return angles_.address(); }
  int dim() const { return dim_; }
  int64_t positions() const { return positions_; }

 private:
  GpuBuffer angles_;  // float2 {cos, sin} [position][dim / 2]
  int dim_;
  int64_t positions_;
};

/// The kernels on KV caches of one shape: all layers share them.
class GpuKvKernels {
 public:
  GpuKvKernels(GpuKernels& kernels, const KvShape& shape, int group)
      : kernels_(kernels), shape_(shape), group_(group) {}

  struct Program {
    KvPlan plan;
    GpuProgram program;
  };
  /// The program for rows of up to `q_tokens` new tokens in batches of up to `rows` rows; made at the first
  /// call.
  const Program& Get(KvOp op, int64_t q_tokens, int64_t rows, int rope_dim);

 private:
  GpuKernels& kernels_;
  KvShape shape_;
  int group_;
  std::map<std::string, Program> programs_;
};

/// The KV layer of one decoder layer in GPU memory.
class GpuKv final : public DeviceKv {
 public:
  GpuKv(GpuKernels& kernels, std::shared_ptr<GpuKvKernels> programs, const KvLayerSpec& spec,
        const KvShape& shape, const KvUse& use);

  void Append(DeviceAddress k, DeviceAddress v, const GpuBatch& batch, const GpuRope& rope);
  void Attend(DeviceAddress q, const GpuBatch& batch, const GpuRope& rope, DeviceAddress out,
              GpuScratch& scratch) const;
  /// What the launches of a batch depend on beside its sizes: stands in the key of a recorded run.
  int64_t LaunchKey(const GpuBatch& batch) const;

  const KvShape& shape() const { return shape_; }
  int64_t bytes_per_token() const override { return bytes_per_token_; }
  int64_t fixed_bytes() const override { return fixed_bytes_; }

 private:
  GpuArguments Arguments(const GpuRows& rows, const GpuRope& rope) const;
  const GpuKvKernels::Program& ProgramOf(KvOp op, const GpuRows& rows, const GpuRope& rope) const;

  GpuKernels& kernels_;
  std::shared_ptr<GpuKvKernels> programs_;
  KvShape shape_;
  GpuBuffer keys_, values_, exact_, key_books_, value_books_;
  int64_t bytes_per_token_ = 0;
  int64_t fixed_bytes_ = 0;
};

/// The shape of a cache layer as kernels see it. Throws Error for formats that kernels do not read.
KvShape MakeKvShape(const KvLayerSpec& spec, const KvUse& use);

}  // namespace vqllm
