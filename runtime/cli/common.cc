#include "runtime/cli/common.h"

#include <fmt/format.h>

#include "runtime/calibrate.h"
#include "runtime/kv_cache.h"
#include "runtime/model/tokenizer.h"
#include "vq/base/error.h"
#include "vq/base/file.h"
#include "vq/base/parallel.h"

namespace vqllm::cli {
namespace {

constexpr int64_t kCalibrationContext = 512;

}  // namespace

void ModelOptions::Add(CLI::App& command) {
  command.add_option("MODEL", model, "A Hugging Face directory or a .gguf file")->required()->type_name("");
  command.add_option("--threads", threads, "Threads to use (default: all cores)")->check(CLI::Range(1, 1024));
}

void ModelOptions::AddDevice(CLI::App& command) {
  command.add_flag("--exact", device.exact,
                   "CPU: fp32 tables and activations in all products: slower, differs by rounding alone");
  command
      .add_option("--device", device.kind,
                  "cpu; cuda: the first GPU; ptx: the GPU's kernels in the PTX interpreter; auto: a GPU "
                  "where there is "
                  "one")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda", "ptx", "auto"}));
  command
      .add_option("--gpu", device.gpu,
                  "ptx: the GPU that kernels are made for, a name of the table or a JSON file")
      ->capture_default_str();
}

Model ModelOptions::Load() const {
  if (threads > 0) SetThreads(threads);
  return LoadModel(model);
}

void KvOptions::Add(CLI::App& command) {
  command.add_option("--kv", format,
                     "KV cache format: kv-fp16, kv-int8, kv-int4, cq-4, cq-2, ...; K/V to set them apart");
  command.add_option("--kv-window", window, "Most recent tokens kept as fp16")->check(CLI::Range(0, 1 << 20));
  command.add_option("--kv-sinks", sinks, "First tokens kept as fp16")->check(CLI::Range(0, 1 << 20));
  command.add_flag("--kv-before-rope", before_rope, "Store keys before rotary embedding");
  command.add_option("--calib", calibration, "Text to train KV codebooks on")->check(CLI::ExistingFile);
}

KvCacheSpec KvOptions::Make(const Model& model, const std::shared_ptr<Device>& device) const {
  const bool own = format.empty() || format == model.kv.name;
  KvCacheSpec spec =
      own && !model.kv.codebooks.empty() ? model.kv : ParseKvCacheSpec(own ? model.kv.name : format);
  if (window > 0) spec.window = window;
  if (sinks > 0) spec.sinks = sinks;
  const bool vq = spec.key.kind == FormatKind::kTable || spec.value.kind == FormatKind::kTable;
  if (!vq || !spec.codebooks.empty()) return spec;
  spec.keys_before_rope = before_rope;
  if (calibration.empty()) {
    Fail("KV format {} needs codebooks and the model has none for it: give --calib FILE", spec.name);
  }
  Decoder decoder(device, model, kCalibrationContext);
  TrainKvCodebooks(decoder, TokensOfFile(model, calibration), FirstToken(model), {}, spec);
  return spec;
}

const Tokenizer& NeedTokenizer(const Model& model) {
  if (!model.tokenizer)
    Fail("the model has no tokenizer: allowed: tokenizer.json, tokenizer.model or tokenizer.bin beside it");
  return *model.tokenizer;
}

std::vector<int32_t> TokensOfFile(const Model& model, const std::filesystem::path& file) {
  const std::string text = ReadTextFile(file);
  if (text.empty()) Fail("{}: the file is empty", file.string());
  return NeedTokenizer(model).Encode(text, {.add_bos = false, .parse_special = false});
}

std::string Size(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace vqllm::cli
