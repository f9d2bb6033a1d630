#include "runtime/device/gpu_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "vq/base/check.h"
#include "vq/base/error.h"
#include "vq/quantizer.h"

namespace vqllm {
namespace {

constexpr int64_t kGemvTokens = 16;  // op gemv serves up to so many, gemm more
constexpr int64_t kManyTokens = 16;  // whose best plan decides the layout for more than one token
constexpr float kLargestHalf = 65504;
constexpr int kTurnThreads = 512;
constexpr int64_t kMaxShared = 227 * 1024;  // of a block

bool Turns(const Format& f) { return f.rotation || f.permutation || f.input_affine; }

std::vector<Half> Halves(const std::vector<float>& values) { return {values.begin(), values.end()}; }

}  // namespace

int64_t TokenBucket(int64_t rows) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(rows, 1))));
}

DeviceAddress GpuScratch::Get(const std::string& name, int64_t bytes) {
  GpuBuffer& buffer = buffers_[name];
  if (buffer.bytes() < bytes) {
    driver_.Synchronise();  // nothing may still read the old one
    buffer = GpuBuffer(driver_, bytes, name);
    ++generation_;
  }
  return buffer.address();
}

GpuLinear::GpuLinear(GpuKernels& kernels, const Format& format, int64_t rows, int64_t cols, bool bias)
    : kernels_(kernels), format_(format), rows_(rows), cols_(cols), bias_(bias) {
  for (const int64_t tokens : {int64_t{1}, kManyTokens}) {
    const WeightLayout& layout = PlanOf(tokens).layout;
    if (layouts_.empty() || layouts_.back().layout != layout) layouts_.push_back({layout, tokens});
  }
}

Request GpuLinear::RequestOf(int64_t tokens) const {
  Request request;
  request.op = tokens <= kGemvTokens ? OpKind::kGemv : OpKind::kGemm;
  request.format = format_;
  request.m = tokens;
  request.n = rows_;
  request.k = cols_;
  request.bias = bias_;
  request.gpu = kernels_.driver().gpu();
  // The two plans that decide the layouts are free; all others read what those decided.
  const bool decides = tokens == 1 || tokens == kManyTokens;
  if (!decides) request.stored = layouts_[LayoutOf(tokens)].layout;
  return request;
}

const Generated& GpuLinear::GeneratedOf(int64_t tokens) {
  const auto found = generated_.find(tokens);
  if (found != generated_.end()) return found->second;
  return generated_.emplace(tokens, Generate(RequestOf(tokens))).first->second;
}

const Plan& GpuLinear::PlanOf(int64_t tokens) { return GeneratedOf(tokens).plan(); }

const GpuLinear::Program& GpuLinear::ProgramOf(int64_t tokens) {
  const auto found = programs_.find(tokens);
  if (found != programs_.end()) return found->second;
  const Generated& generated = GeneratedOf(tokens);
  const Plan& plan = generated.plan();
  const CachedKernel built = Build(generated, kernels_.cache());
  const std::string serves = fmt::format("{} {} {}x{}", ToString(plan.op), plan.format.name, rows_, cols_);
  return programs_
      .emplace(tokens, Program{plan, kernels_.Load(built, generated.FileName(), serves, plan.launches)})
      .first->second;
}

std::shared_ptr<GpuLinear> GpuLinears::Get(const Format& format, int64_t rows, int64_t cols, bool bias) {
  std::shared_ptr<GpuLinear>& linear = linears_[fmt::format("{} {} {} {}", ToJson(format), rows, cols, bias)];
  if (!linear) linear = std::make_shared<GpuLinear>(kernels_, format, rows, cols, bias);
  return linear;
}

Tensor AsHalfTensor(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.rows * tensor.cols));
  Dequantize(tensor, 0, {values.data(), tensor.rows, tensor.cols});
  for (const float value : values) {
    if (std::fabs(value) > kLargestHalf) {
      Fail("weights of format {}: found {}, allowed on a GPU: -65504 to 65504, the range of fp16",
           tensor.format.name, value);
    }
  }
  Tensor half = DenseTensor(DType::kF16, tensor.rows, tensor.cols, values.data());
  half.format.name = "fp16";
  return half;
}

GpuMatrix::GpuMatrix(GpuKernels& kernels, GpuLinears& linears, const Tensor& weights,
                     const std::vector<float>& bias)
    : DeviceMatrix(weights.rows, weights.cols), kernels_(kernels) {
  GpuDriver& driver = kernels.driver();
  const bool dense = weights.format.kind == FormatKind::kDense && weights.format.dtype != DType::kF16;
  const Tensor half = dense ? AsHalfTensor(weights) : Tensor();
  const Tensor& stored = dense ? half : weights;
  const bool turns = Turns(stored.format);
  linear_ = linears.Get(stored.format, rows(), cols(), !turns && !bias.empty());
  for (const GpuLinear::Layout& layout : linear_->layouts()) {
    const DeviceWeights packed = RepackWeights(stored, layout.layout);
    Copy copy;
    copy.codes = UploadAll(driver, packed.codes, "codes");
    copy.codebooks = UploadAll(driver, packed.codebooks, "codebooks");
    copy.scales = UploadAll(driver, packed.scales, "scales");
    copy.factors = UploadAll(driver, packed.factors, "factors");
    if (copies_.empty()) bytes_ = packed.bytes();
    copies_.push_back(std::move(copy));
  }
  if (turns) {
    MakeTurn(stored, bias);
  } else {
    bias_ = UploadAll(driver, Halves(bias), "bias");
  }
}

GpuMatrix::Turn::Side GpuMatrix::MakeSide(int64_t n, bool rotation, bool transposed) const {
  if (4 * n > kMaxShared) {
    Fail("weights of {} x {}: rotation of {} values, allowed on a GPU: {}", rows(), cols(), n,
         kMaxShared / 4);
  }
  Turn::Side side;
  side.n = static_cast<int>(n);
  std::vector<int8_t> matrix = {1};
  if (rotation) {
    const Hadamard hadamard(n);
    const int64_t order = hadamard.paley();
    side.dense = static_cast<int>(order);
    side.power = static_cast<int>(hadamard.power());
    side.norm = static_cast<float>(1 / std::sqrt(static_cast<double>(order * hadamard.power())));
    if (order > 1) matrix.clear();
    for (int64_t i = 0; order > 1 && i < order * order; ++i) {
      const int64_t at = transposed ? i % order * order + i / order : i;
      matrix.push_back(static_cast<int8_t>(hadamard.paley_matrix()[static_cast<size_t>(at)]));
    }
  }
  side.matrix = UploadAll(kernels_.driver(), matrix, "rotation");
  return side;
}

void GpuMatrix::MakeTurn(const Tensor& weights, const std::vector<float>& bias) {
  GpuDriver& driver = kernels_.driver();
  Turn turn;
  turn.in = MakeSide(cols(), weights.format.rotation, false);
  turn.out = MakeSide(rows(), weights.format.rotation, true);
  turn.permutation = UploadAll(driver, weights.permutation, "permutation");
  // Column scales and signs are one factor.
  std::vector<float> factors(weights.input_scale.begin(), weights.input_scale.end());
  if (factors.empty()) factors.assign(weights.sign_in.size(), 1.0f);
  for (size_t c = 0; c < weights.sign_in.size(); ++c) factors[c] *= static_cast<float>(weights.sign_in[c]);
  turn.factors = UploadAll(driver, factors, "factors");
  const auto floats = [](const std::vector<Half>& from) {
    return std::vector<float>(from.begin(), from.end());
  };
  turn.offsets = UploadAll(driver, floats(weights.input_offset), "offsets");
  turn.signs = UploadAll(driver, floats(weights.sign_out), "signs");
  turn.bias = UploadAll(driver, bias, "bias");
  turn_ = std::move(turn);
}

void GpuMatrix::Multiply(DeviceAddress x, int64_t rows_in, DeviceAddress y, GpuScratch& scratch) const {
  const int64_t tokens = TokenBucket(rows_in);
  const GpuLinear::Program& program = linear_->ProgramOf(tokens);
  const Copy& copy = copies_[linear_->LayoutOf(tokens)];
  const auto turn_size = [&](const Turn::Side& side) {
    return LaunchSize{.blocks_x = rows_in, .threads = kTurnThreads, .shared_bytes = int64_t{4} * side.n};
  };
  DeviceAddress turned = x;
  DeviceAddress offset_sums = 0;
  if (turn_) {
    const Turn::Side& in = turn_->in;
    turned = scratch.Get("turned", 2 * tokens * cols());
    if (turn_->offsets.address() != 0) offset_sums = scratch.Get("offset sums", 4 * tokens);
    kernels_.LaunchFixed("turn", "turn_inputs", turn_size(in), x, turn_->permutation.address(),
                         turn_->factors.address(), turn_->offsets.address(), in.matrix.address(), in.n,
                         in.dense, in.power, in.norm, turned, offset_sums);
  }
  const Plan& plan = program.plan;
  const DeviceAddress partial =
      plan.split > 1 ? scratch.Get("partial sums", 4 * plan.split * tokens * rows()) : 0;
  kernels_.Launch(program.program, {{"codes", copy.codes.address()},
                                    {"codebooks", copy.codebooks.address()},
                                    {"scales", copy.scales.address()},
                                    {"factors", copy.factors.address()},
                                    {"x", turned},
                                    {"bias", bias_.address()},
                                    {"y", y},
                                    {"partial", partial}});
  if (turn_) {
    const Turn::Side& out = turn_->out;
    kernels_.LaunchFixed("turn", "turn_outputs", turn_size(out), out.matrix.address(), out.n, out.dense,
                         out.power, out.norm, turn_->signs.address(), offset_sums, turn_->bias.address(), y);
  }
}

std::string GpuMatrix::Kernel(int64_t m) const {
  const Plan& plan = linear_->PlanOf(TokenBucket(m));
  return fmt::format("{} {}", ToString(plan.op), ToString(plan.compute));
}

}  // namespace vqllm
