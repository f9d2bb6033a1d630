#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/gpu_kernels.h"
#include "runtime/device/gpu_kv.h"
#include "runtime/device/gpu_matrix.h"

namespace vqllm {

/// A GPU, or the PTX interpreter in its place: emitted and fixed kernels behind the verbs of a decoder.
/// Operands of products are fp16, the running sum of the layers is fp32.
class GpuDevice final : public Device {
 public:
  /// `cache`: where compiled kernels are kept.
  GpuDevice(std::unique_ptr<GpuDriver> driver, KernelCache cache);

  std::string Describe() const override { return driver_->Describe(); }

  std::unique_ptr<DeviceMatrix> LoadMatrix(const Tensor& weights, std::vector<float> bias) override;
  std::unique_ptr<DeviceVector> LoadVector(std::span<const float> values) override;
  std::unique_ptr<DeviceTable> LoadTable(const Tensor& table) override;
  std::unique_ptr<DeviceRope> LoadRope(const RopeTable& rope) override;
  std::unique_ptr<Activation> NewActivation(int64_t rows, int64_t cols, ActivationUse use) override;
  std::unique_ptr<DeviceKv> NewKv(const KvLayerSpec& spec, const KvUse& use) override;
  const char* ExactKvFormat() const override { return "kv-fp16"; }

  void Begin(const Batch& batch, const DeviceKv& kv) override;
  void Repeat(std::span<const int64_t> key, const std::function<void()>& verbs) override;
  void Embed(const DeviceTable& table, Activation& x) override;
  void Gather(const Activation& x, int64_t begin, int64_t count, Activation& y) override;
  void RmsNorm(const Activation& x, const DeviceVector& weight, float epsilon, int64_t rows,
               Activation& y) override;
  void MatMul(const Activation& x, int64_t rows, std::span<const MatMulOutput> outputs) override;
  void SiluMul(const Activation& gate, const Activation& up, int64_t rows, Activation& y) override;
  void Add(const Activation& y, int64_t rows, Activation& x) override;
  void KvAppend(DeviceKv& kv, const Activation& k, const Activation& v, const DeviceRope& rope) override;
  void Attend(const DeviceKv& kv, const Activation& q, const DeviceRope& rope, Activation& out) override;
  void Download(const Activation& x, int64_t rows, float* out) override;

  bool Counts() const override { return driver_->Counts(); }
  std::vector<KernelUse> Uses() const override { return kernels_.Uses(); }
  void ResetUses() override { kernels_.ResetUses(); }

  GpuKernels& kernels() { return kernels_; }
  /// How often a recorded run was repeated.
  int64_t recorded_runs() const { return recorded_runs_; }

 private:
  std::unique_ptr<GpuDriver> driver_;
  GpuKernels kernels_;
  GpuLinears linears_;
  GpuScratch scratch_;
  GpuBatch batch_;
  std::map<std::string, std::shared_ptr<GpuKvKernels>> kv_kernels_;
  int64_t kv_launch_key_ = 0;  // of the batch
  /// Runs of verbs that were asked for before, by key: recorded at the second time, when all kernels are
  /// loaded and all buffers have their size.
  std::map<std::vector<int64_t>, std::unique_ptr<GpuGraph>> recordings_;
  int64_t recorded_runs_ = 0;
  int64_t recorded_generation_ = 0;
  bool records_ = true;  // until the driver says that it cannot
};

}  // namespace vqllm
