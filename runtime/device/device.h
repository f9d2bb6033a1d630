#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/kv_layer.h"
#include "vq/tensor.h"

namespace vqllm {

/// A weight matrix in a device's own layout.
class DeviceMatrix {
 public:
  virtual ~DeviceMatrix() = default;
  /// Which kernel serves m rows of x, for reports.
  virtual std::string Kernel(int64_t m) const = 0;
  /// Bytes that a decode step reads.
  virtual int64_t bytes() const = 0;

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 protected:
  DeviceMatrix(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}

 private:
  int64_t rows_;
  int64_t cols_;
};

/// A small vector of weights (a norm) in device memory.
class DeviceVector {
 public:
  virtual ~DeviceVector() = default;
};

/// The rows that token ids pick (an embedding) in device memory.
class DeviceTable {
 public:
  virtual ~DeviceTable() = default;
};

/// Cosines and sines of the positions of a context in device memory.
class DeviceRope {
 public:
  virtual ~DeviceRope() = default;
};

/// What activations are for: a GPU keeps the running sum of the layers as fp32 and operands of products as
/// fp16; a CPU has fp32 for both.
enum class ActivationUse : uint8_t { kOperand, kSum };

/// Activations [rows, cols], row-major in device memory; the element type is the device's own.
class Activation {
 public:
  virtual ~Activation() = default;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

 protected:
  Activation(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}

 private:
  int64_t rows_;
  int64_t cols_;
};

/// Keys and values of one layer in device memory.
class DeviceKv {
 public:
  virtual ~DeviceKv() = default;
  /// Bytes of one token, K and V together.
  virtual int64_t bytes_per_token() const = 0;
  /// Bytes that do not grow with tokens: codebooks, fp16 windows.
  virtual int64_t fixed_bytes() const = 0;
};

/// What a KV layer has to hold and to serve.
struct KvUse {
  int64_t pages = 0;    ///< of the pool that all sequences share
  int slots = 0;        ///< sequences
  int query_heads = 0;  ///< a multiple of the KV heads
  int64_t context = 0;  ///< tokens that one sequence may reach
};

/// Tokens that may go through the layers together.
inline constexpr int64_t kMaxBatchTokens = 512;

using cpu::KvLayerSpec;
using cpu::KvRow;
using cpu::KvSide;
using cpu::RopeTable;

/// y = x W^T + bias for one of several matrices that read the same x.
struct MatMulOutput {
  const DeviceMatrix* weights;
  Activation* y;
};

/// Tokens that go through the layers together.
struct Batch {
  std::span<const int32_t> ids;     ///< [tokens]
  std::span<const KvRow> rows;      ///< cut the tokens into sequences, in order and without gaps
  std::span<const int64_t> picked;  ///< tokens whose logits are wanted, ascending
};

/// What was launched for one op since ResetUses, on a device that counts.
struct KernelUse {
  std::string op;       ///< with format and shape: "gemv aqlm-2x8 4096x4096"
  std::string kernels;  ///< names of the kernels that served it
  int64_t launches = 0;
  double dram_bytes = 0;         ///< counted: sectors touched for the first time in a launch
  double shared_wavefronts = 0;  ///< counted: passes of shared memory
  double modelled_lower_us = 0;  ///< modelled from the counts: the term that binds
  double modelled_upper_us = 0;  ///< nothing overlapped
};

/// What a decoder asks of a machine: a handful of verbs over weights, activations and KV layers that the
/// device owns. Objects of one device must not be handed to another. Verbs run in the order of the calls;
/// Download waits for them.
///
/// A value's way: Begin hands the device everything that differs from batch to batch, in one piece; the verbs
/// then name device memory alone, so that a device may record a run of them and repeat it.
class Device {
 public:
  virtual ~Device() = default;

  /// One line for reports: the processor and what is used of it.
  virtual std::string Describe() const = 0;

  /// Repacks a tensor once into the layout that the device's kernels read. `bias` is empty or [rows].
  virtual std::unique_ptr<DeviceMatrix> LoadMatrix(const Tensor& weights, std::vector<float> bias) = 0;
  virtual std::unique_ptr<DeviceVector> LoadVector(std::span<const float> values) = 0;
  virtual std::unique_ptr<DeviceTable> LoadTable(const Tensor& table) = 0;
  virtual std::unique_ptr<DeviceRope> LoadRope(const RopeTable& rope) = 0;
  virtual std::unique_ptr<Activation> NewActivation(int64_t rows, int64_t cols, ActivationUse use) = 0;
  virtual std::unique_ptr<DeviceKv> NewKv(const KvLayerSpec& spec, const KvUse& use) = 0;
  /// The KV format of this device that is nearest to no quantisation: for calibration.
  virtual const char* ExactKvFormat() const = 0;

  /// Makes `batch` the one that the verbs below work on; `kv` is any layer of the cache that it reads and
  /// appends to. The device copies what it needs, except for
  /// KvRow::pages, which must live as long as the batch.
  virtual void Begin(const Batch& batch, const DeviceKv& kv) = 0;

  /// Runs verbs(). A device may record what they launch and repeat the record at a later call with the same
  /// key instead of running them (a CUDA graph): so they must depend on the key and on the batch alone, and
  /// must not download. Keys are made of NewKey() and sizes of the batch.
  virtual void Repeat(std::span<const int64_t> key, const std::function<void()>& verbs) = 0;
  /// A number that this device has not given before: stands for an object in keys.
  int64_t NewKey() { return next_key_++; }

  /// x[t] = row ids[t] of the table, for all tokens of the batch.
  virtual void Embed(const DeviceTable& table, Activation& x) = 0;
  /// y[i] = x[picked[begin + i]] for i in [0, count).
  virtual void Gather(const Activation& x, int64_t begin, int64_t count, Activation& y) = 0;

  // In the verbs below the first `rows` rows of the activations count.
  virtual void RmsNorm(const Activation& x, const DeviceVector& weight, float epsilon, int64_t rows,
                       Activation& y) = 0;
  virtual void MatMul(const Activation& x, int64_t rows, std::span<const MatMulOutput> outputs) = 0;
  virtual void SiluMul(const Activation& gate, const Activation& up, int64_t rows, Activation& y) = 0;
  /// x += y.
  virtual void Add(const Activation& y, int64_t rows, Activation& x) = 0;

  /// See cpu::KvLayer: k, v and q [tokens, width] are not rotated yet.
  virtual void KvAppend(DeviceKv& kv, const Activation& k, const Activation& v, const DeviceRope& rope) = 0;
  virtual void Attend(const DeviceKv& kv, const Activation& q, const DeviceRope& rope, Activation& out) = 0;

  /// Rows [0, rows) of x as fp32 into out [rows, cols].
  virtual void Download(const Activation& x, int64_t rows, float* out) = 0;

  /// True where runs are counted, and their time means nothing: the interpreter.
  virtual bool Counts() const { return false; }
  /// By op, since the device was made or ResetUses; empty on a CPU. Without Counts() only the kernels are
  /// known.
  virtual std::vector<KernelUse> Uses() const { return {}; }
  virtual void ResetUses() {}

 private:
  int64_t next_key_ = 0;
};

/// The device of every machine: kernels/cpu. `exact` keeps all products in fp32 (see cpu::LinearOptions).
std::unique_ptr<Device> NewCpuDevice(bool exact = false);

}  // namespace vqllm
