#pragma once

#include <cstdint>
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

/// Activations [rows, cols], row-major in device memory; the element type is the device's own (fp32 on a
/// CPU).
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

using cpu::KvLayerSpec;
using cpu::KvRow;
using cpu::KvSide;
using cpu::RopeTable;

/// y = x W^T + bias for one of several matrices that read the same x.
struct MatMulOutput {
  const DeviceMatrix* weights;
  Activation* y;
};

/// What a decoder asks of a machine: a handful of verbs over weights, activations and KV layers that the
/// device owns. Objects of one device must not be handed to another. Verbs run in the order of the calls;
/// Download waits for them.
class Device {
 public:
  virtual ~Device() = default;

  /// One line for reports: the processor and what is used of it.
  virtual std::string Describe() const = 0;

  /// Repacks a tensor once into the layout that the device's kernels read. `bias` is empty or [rows].
  virtual std::unique_ptr<DeviceMatrix> LoadMatrix(const Tensor& weights, std::vector<float> bias) = 0;
  virtual std::unique_ptr<DeviceVector> LoadVector(std::span<const float> values) = 0;
  virtual std::unique_ptr<Activation> NewActivation(int64_t rows, int64_t cols) = 0;
  virtual std::unique_ptr<DeviceKv> NewKv(const KvLayerSpec& spec, int64_t pages, int slots) = 0;

  /// x[t] = row ids[t] of the table, for the first ids.size() rows of x.
  virtual void Embed(const Tensor& table, std::span<const int32_t> ids, Activation& x) = 0;

  // In the verbs below the first `rows` rows of the activations count.
  virtual void RmsNorm(const Activation& x, const DeviceVector& weight, float epsilon, int64_t rows,
                       Activation& y) = 0;
  virtual void MatMul(const Activation& x, int64_t rows, std::span<const MatMulOutput> outputs) = 0;
  virtual void SiluMul(const Activation& gate, const Activation& up, int64_t rows, Activation& y) = 0;
  /// x += y.
  virtual void Add(const Activation& y, int64_t rows, Activation& x) = 0;
  /// y[i] = x[picked[i]].
  virtual void Gather(const Activation& x, std::span<const int64_t> picked, Activation& y) = 0;

  /// See cpu::KvLayer: k, v and q are not rotated yet, their rows are cut into sequences by `rows`.
  virtual void KvAppend(DeviceKv& kv, const Activation& k, const Activation& v, std::span<const KvRow> rows,
                        const RopeTable& rope) = 0;
  virtual void Attend(const DeviceKv& kv, const Activation& q, std::span<const KvRow> rows,
                      const RopeTable& rope, Activation& out) = 0;

  /// Rows [0, rows) of x as fp32 into out [rows, cols].
  virtual void Download(const Activation& x, int64_t rows, float* out) = 0;
};

/// The device of every machine: kernels/cpu. `exact` keeps all products in fp32 (see cpu::LinearOptions).
std::unique_ptr<Device> NewCpuDevice(bool exact = false);

}  // namespace vqllm
