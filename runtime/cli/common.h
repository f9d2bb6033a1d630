#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/open.h"
#include "runtime/model/model.h"

namespace vqllm::cli {

/// Options that every command with a model has.
struct ModelOptions {
  std::filesystem::path model;
  int threads = 0;
  DeviceOptions device;

  void Add(CLI::App& command);
  /// --device and what belongs to it, for commands that run the model.
  void AddDevice(CLI::App& command);
  /// Loads the model and sets the threads.
  Model Load() const;
  std::shared_ptr<Device> MakeDevice() const { return OpenDevice(device); }
  /// Where KV codebooks are trained: the device, but a CPU for the interpreter, which would take hours.
  std::shared_ptr<Device> CalibrationDevice(const std::shared_ptr<Device>& main) const {
    return device.kind == "ptx" ? NewCpuDevice() : main;
  }
};

/// Options of a KV cache.
struct KvOptions {
  std::string format;  ///< empty: what the model was quantised for, else fp16
  int window = 0;
  int sinks = 0;
  bool before_rope = false;
  std::filesystem::path calibration;

  void Add(CLI::App& command);
  /// The spec, with codebooks from the model where it has them for this format, else trained on the
  /// calibration text.
  KvCacheSpec Make(const Model& model, const std::shared_ptr<Device>& device) const;
};

/// The tokenizer, or Error where the model has none.
const Tokenizer& NeedTokenizer(const Model& model);

/// Token ids of a whole text file, without BOS. Throws Error where the file is empty.
std::vector<int32_t> TokensOfFile(const Model& model, const std::filesystem::path& file);

/// "1.5 KiB", "3.2 MiB"
std::string Size(int64_t bytes);

}  // namespace vqllm::cli
