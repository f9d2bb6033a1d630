#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/layout.h"
#include "codegen/planner.h"
#include "runtime/device/device.h"
#include "runtime/device/gpu_kernels.h"
#include "vq/hadamard.h"

namespace vqllm {

/// Tokens that kernels are made for: rows rounded up to a power of two. Activations have room for them, so
/// that a kernel for 16 tokens serves 9; what it makes of the others is not read.
int64_t TokenBucket(int64_t rows);

/// Device memory for what verbs pass among their own kernels. It grows, and keeps its addresses between
/// growths.
class GpuScratch {
 public:
  explicit GpuScratch(GpuDriver& driver) : driver_(driver) {}
  /// At least so many bytes; one buffer a name.
  DeviceAddress Get(const std::string& name, int64_t bytes);
  /// Counts growths: addresses of an older generation are stale.
  int64_t generation() const { return generation_; }

 private:
  GpuDriver& driver_;
  std::map<std::string, GpuBuffer> buffers_;
  int64_t generation_ = 0;
};

/// The kernels that multiply with matrices of one format and shape: all layers share them.
class GpuLinear {
 public:
  /// Decides how the codes lie: one order for the decode step of one token, one for more tokens (its kernels
  /// feed tensor cores). They are the same where the planner says so.
  GpuLinear(GpuKernels& kernels, const Format& format, int64_t rows, int64_t cols, bool bias);

  struct Layout {
    WeightLayout layout;
    int64_t reference_tokens;  ///< whose best plan it comes from
  };
  const std::vector<Layout>& layouts() const { return layouts_; }
  /// Which of layouts() serves so many tokens.
  size_t LayoutOf(int64_t tokens) const { return tokens == 1 ? 0 : layouts_.size() - 1; }

  struct Program {
    Plan plan;
    GpuProgram program;
  };
  /// For a bucket; generated and compiled at the first call.
  const Program& ProgramOf(int64_t tokens);
  /// The plan without compiling it.
  const Plan& PlanOf(int64_t tokens);

 private:
  Request RequestOf(int64_t tokens) const;
  const Generated& GeneratedOf(int64_t tokens);

  GpuKernels& kernels_;
  Format format_;
  int64_t rows_;
  int64_t cols_;
  bool bias_;
  std::vector<Layout> layouts_;
  std::map<int64_t, Generated> generated_;
  std::map<int64_t, Program> programs_;
};

/// The kernels by format and shape.
class GpuLinears {
 public:
  explicit GpuLinears(GpuKernels& kernels) : kernels_(kernels) {}
  std::shared_ptr<GpuLinear> Get(const Format& format, int64_t rows, int64_t cols, bool bias);

 private:
  GpuKernels& kernels_;
  std::map<std::string, std::shared_ptr<GpuLinear>> linears_;
};

/// A weight matrix in GPU memory: its codes in the order of each layout, codebooks and scales once.
class GpuMatrix final : public DeviceMatrix {
 public:
  GpuMatrix(GpuKernels& kernels, GpuLinears& linears, const Tensor& weights, const std::vector<float>& bias);

  /// y [rows, rows()] = x [rows, cols()] W^T + bias, fp16; both have room for TokenBucket(rows).
  void Multiply(DeviceAddress x, int64_t rows, DeviceAddress y, GpuScratch& scratch) const;

  std::string Kernel(int64_t m) const override;
  int64_t bytes() const override { return bytes_; }

 private:
  /// Codes in one layout. Codebooks, scales and factors do not depend on it, but small ones are kept by each.
  struct Copy {
    GpuBuffer codes, codebooks, scales, factors;
  };
  /// What rotation, permutation and column scales ask of the activations; see kernels/cuda/turn.cu.
  struct Turn {
    struct Side {
      int n = 0, dense = 1, power = 1;
      float norm = 1;
      GpuBuffer matrix;
    };
    Side in, out;
    GpuBuffer permutation, factors, offsets, signs, bias;
  };
  Turn::Side MakeSide(int64_t n, bool rotation, bool transposed) const;
  void MakeTurn(const Tensor& weights, const std::vector<float>& bias);

  GpuKernels& kernels_;
  std::shared_ptr<GpuLinear> linear_;
  std::vector<Copy> copies_;
  GpuBuffer bias_;
  std::optional<Turn> turn_;
  int64_t bytes_ = 0;
};

/// The tensor with its values as fp16, which is what kernels of dense weights read. Values of bf16 and fp32
/// that fp16 holds stay exact; smaller ones lose bits below 2^-24. Throws Error on values beyond the range of
/// fp16.
Tensor AsHalfTensor(const Tensor& tensor);

}  // namespace vqllm
