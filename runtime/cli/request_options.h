#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "codegen/request.h"

namespace vqllm::cli {

/// The options of codegen, explain and verify: what kernel is wanted.
struct RequestOptions {
  std::string op = "gemv";
  std::string format;
  int64_t m = 1;
  int64_t n = 0;
  int64_t k = 0;
  std::string gpu = "a100";
  std::string level = "best";
  std::string activation = "fp16";
  bool bias = false;
  PlanPins pins;
  std::string pin_file;
  std::string compute;  ///< empty: free
  std::string fusion;   ///< empty: free

  void Add(CLI::App& command);
  /// Throws Error that names the option.
  Request Make() const;
};

}  // namespace vqllm::cli
