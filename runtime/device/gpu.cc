#include "runtime/device/gpu.h"

#include <algorithm>

#include "vq/base/check.h"
#include "vq/base/error.h"

namespace vqllm {
namespace {

constexpr int kThreads = 256;          // of the kernels in kernels/cuda
constexpr size_t kMaxRecordings = 64;  // graphs kept; a step's graph changes as its sequence grows by a page

class GpuVector final : public DeviceVector {
 public:
  GpuVector(GpuDriver& driver, std::span<const float> from) : values(UploadAll(driver, from, "norm")) {}
  const GpuBuffer values;
};

class GpuTable final : public DeviceTable {
 public:
  GpuTable(GpuDriver& driver, const Tensor& table)
      : values(driver, 2 * table.rows * table.cols, "embedding"), cols(table.cols) {
    const Tensor half = AsHalfTensor(table);
    driver.Upload(values.address(), half.values.data(), values.bytes());
  }
  const GpuBuffer values;  // fp16 [rows, cols]
  const int64_t cols;
};

class GpuActivation final : public Activation {
 public:
  GpuActivation(GpuDriver& driver, int64_t rows, int64_t cols, ActivationUse use_in)
      : Activation(rows, cols),
        use(use_in),
        values(driver, ElementBytes() * TokenBucket(rows) * cols, "activations") {}
  int64_t ElementBytes() const { return use == ActivationUse::kSum ? 4 : 2; }
  const ActivationUse use;
  const GpuBuffer values;
};

/// Memory of the first `rows` rows of an activation of that use.
DeviceAddress First(const Activation& x, int64_t rows, ActivationUse use) {
  const auto& activation = static_cast<const GpuActivation&>(x);
  VQLLM_CHECK(rows <= x.rows() && activation.use == use, "{} rows of {}", rows, x.rows());
  return activation.values.address();
}
DeviceAddress Operand(const Activation& x, int64_t rows) { return First(x, rows, ActivationUse::kOperand); }
DeviceAddress Sum(const Activation& x, int64_t rows) { return First(x, rows, ActivationUse::kSum); }

/// The launch of an element-wise kernel that takes two values a thread.
LaunchSize Pairs(int64_t count) {
  return {.blocks_x = (count + 2 * kThreads - 1) / (2 * kThreads), .threads = kThreads};
}

}  // namespace

GpuDevice::GpuDevice(std::unique_ptr<GpuDriver> driver, KernelCache cache)
    : driver_(std::move(driver)),
      kernels_(*driver_, std::move(cache)),
      linears_(kernels_),
      scratch_(*driver_),
      batch_(*driver_) {}

std::unique_ptr<DeviceMatrix> GpuDevice::LoadMatrix(const Tensor& weights, std::vector<float> bias) {
  return std::make_unique<GpuMatrix>(kernels_, linears_, weights, bias);
}
std::unique_ptr<DeviceVector> GpuDevice::LoadVector(std::span<const float> values) {
  return std::make_unique<GpuVector>(*driver_, values);
}
std::unique_ptr<DeviceTable> GpuDevice::LoadTable(const Tensor& table) {
  return std::make_unique<GpuTable>(*driver_, table);
}
std::unique_ptr<DeviceRope> GpuDevice::LoadRope(const RopeTable& rope) {
  return std::make_unique<GpuRope>(*driver_, rope);
}
std::unique_ptr<Activation> GpuDevice::NewActivation(int64_t rows, int64_t cols, ActivationUse use) {
  return std::make_unique<GpuActivation>(*driver_, rows, cols, use);
}

std::unique_ptr<DeviceKv> GpuDevice::NewKv(const KvLayerSpec& spec, const KvUse& use) {
  const KvShape shape = MakeKvShape(spec, use);
  const int group = use.query_heads / spec.kv_heads;
  const std::string key =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {}", ToJson(shape.key), ToJson(shape.value), shape.kv_heads,
                  shape.head_dim, shape.page_tokens, shape.sinks, shape.window, shape.sliding_window,
                  shape.keys_before_rope, shape.context, group);
  std::shared_ptr<GpuKvKernels>& kernels = kv_kernels_[key];
  if (!kernels) kernels = std::make_shared<GpuKvKernels>(kernels_, shape, group);
  return std::make_unique<GpuKv>(kernels_, kernels, spec, shape, use);
}

void GpuDevice::Begin(const Batch& batch, const DeviceKv& kv) {
  const auto& layer = static_cast<const GpuKv&>(kv);
  batch_.Upload(batch, layer.shape().Pages(), layer.shape().page_tokens);
  kv_launch_key_ = layer.LaunchKey(batch_);
}

void GpuDevice::Repeat(std::span<const int64_t> key, const std::function<void()>& verbs) {
  if (!records_) return verbs();
  const int64_t generation = scratch_.generation() + batch_.generation();
  if (generation != recorded_generation_ || recordings_.size() >= kMaxRecordings) {
    recordings_.clear();
    recorded_generation_ = generation;
  }
  std::vector<int64_t> whole(key.begin(), key.end());
  whole.insert(whole.end(), {batch_.sequences().count, batch_.sequences().most_tokens, kv_launch_key_});
  const auto [found, first] = recordings_.try_emplace(whole);
  if (first) return verbs();
  std::unique_ptr<GpuGraph>& graph = found->second;
  if (!graph) graph = driver_->Record(verbs);
  if (!graph) {
    records_ = false;
    recordings_.clear();
    return verbs();
  }
  driver_->Replay(*graph);
  ++recorded_runs_;
}

void GpuDevice::Embed(const DeviceTable& table, Activation& x) {
  const auto& from = static_cast<const GpuTable&>(table);
  const int64_t tokens = batch_.tokens();
  kernels_.LaunchFixed("embed", "embed", {.blocks_x = tokens, .threads = kThreads}, from.values.address(),
                       batch_.ids(), static_cast<int>(from.cols), Sum(x, tokens));
}

void GpuDevice::Gather(const Activation& x, int64_t begin, int64_t count, Activation& y) {
  const DeviceAddress picked = batch_.picked() + static_cast<DeviceAddress>(4 * begin);
  kernels_.LaunchFixed("gather", "gather", {.blocks_x = count, .threads = kThreads}, Sum(x, batch_.tokens()),
                       picked, static_cast<int>(x.cols()), Sum(y, count));
}

void GpuDevice::RmsNorm(const Activation& x, const DeviceVector& weight, float epsilon, int64_t rows,
                        Activation& y) {
  kernels_.LaunchFixed("rms_norm", "rms_norm", {.blocks_x = rows, .threads = kThreads}, Sum(x, rows),
                       static_cast<const GpuVector&>(weight).values.address(), epsilon,
                       static_cast<int>(x.cols()), Operand(y, rows));
}

void GpuDevice::MatMul(const Activation& x, int64_t rows, std::span<const MatMulOutput> outputs) {
  for (const MatMulOutput& output : outputs) {
    static_cast<const GpuMatrix&>(*output.weights)
        .Multiply(Operand(x, rows), rows, Operand(*output.y, rows), scratch_);
  }
}

void GpuDevice::SiluMul(const Activation& gate, const Activation& up, int64_t rows, Activation& y) {
  const int64_t count = rows * y.cols();
  kernels_.LaunchFixed("silu_mul", "silu_mul", Pairs(count), Operand(gate, rows), Operand(up, rows),
                       static_cast<int>(count), Operand(y, rows));
}

void GpuDevice::Add(const Activation& y, int64_t rows, Activation& x) {
  const int64_t count = rows * x.cols();
  kernels_.LaunchFixed("add", "add", Pairs(count), Operand(y, rows), static_cast<int>(count), Sum(x, rows));
}

void GpuDevice::KvAppend(DeviceKv& kv, const Activation& k, const Activation& v, const DeviceRope& rope) {
  static_cast<GpuKv&>(kv).Append(Operand(k, batch_.tokens()), Operand(v, batch_.tokens()), batch_,
                                 static_cast<const GpuRope&>(rope));
}

void GpuDevice::Attend(const DeviceKv& kv, const Activation& q, const DeviceRope& rope, Activation& out) {
  static_cast<const GpuKv&>(kv).Attend(Operand(q, batch_.tokens()), batch_, static_cast<const GpuRope&>(rope),
                                       Operand(out, batch_.tokens()), scratch_);
}

void GpuDevice::Download(const Activation& x, int64_t rows, float* out) {
  const auto& from = static_cast<const GpuActivation&>(x);
  VQLLM_CHECK(rows <= x.rows(), "{} rows of {}", rows, x.rows());
  const size_t count = static_cast<size_t>(rows * x.cols());
  if (from.use == ActivationUse::kSum) {
    driver_->Download(out, from.values.address(), static_cast<int64_t>(4 * count));
    return;
  }
  std::vector<Half> halves(count);
  driver_->Download(halves.data(), from.values.address(), static_cast<int64_t>(2 * count));
  std::copy(halves.begin(), halves.end(), out);
}

}  // namespace vqllm
