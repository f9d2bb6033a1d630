#pragma once

#include "vq/quantizer.h"

// The methods behind Quantize, one a file. Each gets finite weights, already rotated where the format says
// so, and a validated format, and fills a tensor of that format; signs are the caller's to add.
namespace vqllm::internal {

Tensor QuantizeInt(const Format& format, MatrixView<const float> weights, const std::string& what,
                   QuantizeReport& report);
Tensor QuantizeTable(const Format& format, MatrixView<const float> weights, const QuantizeOptions& options,
                     const std::string& what, QuantizeReport& report);
Tensor QuantizeLattice(const Format& format, MatrixView<const float> weights, const std::string& what,
                       QuantizeReport& report);

/// `scale` as a half, rounded up so that no weight is clipped by the rounding. Throws Error where it does not
/// fit.
Half ScaleToHalf(float scale, const std::string& what);

}  // namespace vqllm::internal
