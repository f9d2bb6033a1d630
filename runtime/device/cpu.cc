#include <algorithm>
#include <cstring>
#include <fstream>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/kv_layer.h"
#include "kernels/cpu/linear.h"
#include "runtime/device/device.h"
#include "vq/base/check.h"
#include "vq/base/parallel.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

class CpuMatrix final : public DeviceMatrix {
 public:
  explicit CpuMatrix(std::unique_ptr<cpu::Linear> linear)
      : DeviceMatrix(linear->rows(), linear->cols()), linear_(std::move(linear)) {}
  std::string Kernel(int64_t m) const override { return linear_->Kernel(m); }
  int64_t bytes() const override { return linear_->bytes(); }
  const cpu::Linear* linear() const { return linear_.get(); }

 private:
  std::unique_ptr<cpu::Linear> linear_;
};

class CpuVector final : public DeviceVector {
 public:
  explicit CpuVector(std::span<const float> from) : values(from.begin(), from.end()) {}
  const std::vector<float> values;
};

class CpuTable final : public DeviceTable {
 public:
  explicit CpuTable(const Tensor& from) : tensor(from) {}
  const Tensor tensor;
};

class CpuRope final : public DeviceRope {
 public:
  explicit CpuRope(const RopeTable& from) : table(from) {}
  const RopeTable table;
};

class CpuActivation final : public Activation {
 public:
  CpuActivation(int64_t rows, int64_t cols)
      : Activation(rows, cols), values_(static_cast<size_t>(rows * cols)) {}
  MatrixView<float> First(int64_t count) {
    VQLLM_CHECK(count <= rows(), "{} rows of {}", count, rows());
    return {values_.data(), count, cols()};
  }
  MatrixView<const float> First(int64_t count) const {
    return const_cast<CpuActivation*>(this)->First(count);
  }

 private:
  std::vector<float> values_;
};

class CpuKv final : public DeviceKv {
 public:
  CpuKv(const KvLayerSpec& spec, int64_t pages, int slots) : layer(spec, pages, slots) {}
  int64_t bytes_per_token() const override { return layer.bytes_per_token(); }
  int64_t fixed_bytes() const override { return layer.fixed_bytes(); }
  cpu::KvLayer layer;
};

const CpuActivation& Host(const Activation& x) { return static_cast<const CpuActivation&>(x); }
CpuActivation& Host(Activation& x) { return static_cast<CpuActivation&>(x); }

std::string ProcessorName() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "CPU";
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(bool exact) : options_{.exact = exact} {}

  std::string Describe() const override {
    return fmt::format("{}, {} thread{}{}", ProcessorName(), Threads(), Threads() == 1 ? "" : "s",
                       options_.exact ? ", exact products" : "");
  }

  std::unique_ptr<DeviceMatrix> LoadMatrix(const Tensor& weights, std::vector<float> bias) override {
    return std::make_unique<CpuMatrix>(cpu::PrepareLinear(weights, std::move(bias), options_));
  }
  std::unique_ptr<DeviceVector> LoadVector(std::span<const float> values) override {
    return std::make_unique<CpuVector>(values);
  }
  std::unique_ptr<DeviceTable> LoadTable(const Tensor& table) override {
    return std::make_unique<CpuTable>(table);
  }
  std::unique_ptr<DeviceRope> LoadRope(const RopeTable& rope) override {
    return std::make_unique<CpuRope>(rope);
  }
  std::unique_ptr<Activation> NewActivation(int64_t rows, int64_t cols, ActivationUse) override {
    return std::make_unique<CpuActivation>(rows, cols);
  }
  std::unique_ptr<DeviceKv> NewKv(const KvLayerSpec& spec, const KvUse& use) override {
    return std::make_unique<CpuKv>(spec, use.pages, use.slots);
  }
  const char* ExactKvFormat() const override { return "kv-fp32"; }

  void Begin(const Batch& batch, const DeviceKv&) override {
    ids_.assign(batch.ids.begin(), batch.ids.end());
    rows_.assign(batch.rows.begin(), batch.rows.end());
    picked_.assign(batch.picked.begin(), batch.picked.end());
  }
  void Repeat(std::span<const int64_t>, const std::function<void()>& verbs) override { verbs(); }

  void Embed(const DeviceTable& table, Activation& x) override {
    const Tensor& tensor = static_cast<const CpuTable&>(table).tensor;
    MatrixView<float> out = Host(x).First(Tokens());
    ParallelFor(out.rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        Dequantize(tensor, ids_[static_cast<size_t>(t)], {out.Row(t), 1, out.cols, out.stride});
      }
    });
  }

  void Gather(const Activation& x, int64_t begin, int64_t count, Activation& y) override {
    const MatrixView<const float> from = Host(x).First(x.rows());
    const MatrixView<float> to = Host(y).First(count);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(from.Row(picked_[static_cast<size_t>(begin + i)]), from.cols, to.Row(i));
    }
  }

  void RmsNorm(const Activation& x, const DeviceVector& weight, float epsilon, int64_t rows,
               Activation& y) override {
    cpu::RmsNorm(Host(x).First(rows), static_cast<const CpuVector&>(weight).values, epsilon,
                 Host(y).First(rows));
  }

  void MatMul(const Activation& x, int64_t rows, std::span<const MatMulOutput> outputs) override {
    std::vector<cpu::Product> products;
    for (const MatMulOutput& output : outputs) {
      products.push_back(
          {static_cast<const CpuMatrix&>(*output.weights).linear(), Host(*output.y).First(rows)});
    }
    cpu::MultiplyAll(Host(x).First(rows), products);
  }

  void SiluMul(const Activation& gate, const Activation& up, int64_t rows, Activation& y) override {
    cpu::SiluMul(Host(gate).First(rows), Host(up).First(rows), Host(y).First(rows));
  }

  void Add(const Activation& y, int64_t rows, Activation& x) override {
    cpu::Add(Host(y).First(rows), Host(x).First(rows));
  }

  void KvAppend(DeviceKv& kv, const Activation& k, const Activation& v, const DeviceRope& rope) override {
    static_cast<CpuKv&>(kv).layer.Append(Host(k).First(Tokens()), Host(v).First(Tokens()), rows_,
                                         static_cast<const CpuRope&>(rope).table);
  }

  void Attend(const DeviceKv& kv, const Activation& q, const DeviceRope& rope, Activation& out) override {
    static_cast<const CpuKv&>(kv).layer.Attend(
        Host(q).First(Tokens()), rows_, static_cast<const CpuRope&>(rope).table, Host(out).First(Tokens()));
  }

  void Download(const Activation& x, int64_t rows, float* out) override {
    const MatrixView<const float> from = Host(x).First(rows);
    std::copy_n(from.data, from.rows * from.cols, out);
  }

 private:
  int64_t Tokens() const { return static_cast<int64_t>(ids_.size()); }

  cpu::LinearOptions options_;
  std::vector<int32_t> ids_;  // of the batch
  std::vector<KvRow> rows_;
  std::vector<int64_t> picked_;
};

}  // namespace

std::unique_ptr<Device> NewCpuDevice(bool exact) { return std::make_unique<CpuDevice>(exact); }

}  // namespace vqllm
