#include "runtime/model/kv_files.h"

#include <nlohmann/json.hpp>

#include "runtime/kv_cache.h"
#include "vq/base/error.h"
#include "vq/base/file.h"
#include "vq/base/json_reader.h"
#include "vq/checkpoint/safetensors_writer.h"
#include "vq/checkpoint/tensor_store.h"

namespace vqllm {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSettings = "kv_cache.json";
constexpr const char* kCodebooks = "kv_codebooks.safetensors";

/// Codebooks of a side of a layer: [stage][head and channel group][entry][channel], one array a stage.
std::string ArrayName(size_t layer, const char* side, size_t stage) {
  return fmt::format("layers.{}.{}.codebooks.{}", layer, side, stage);
}

struct Side {
  const char* name;
  Format KvCacheSpec::*format;
  std::vector<std::vector<Half>> KvCodebooks::*codebooks;
};
constexpr Side kSides[] = {{"key", &KvCacheSpec::key, &KvCodebooks::key},
                           {"value", &KvCacheSpec::value, &KvCodebooks::value}};

}  // namespace

void WriteKvFiles(const Model& model, const fs::path& folder) {
  const KvCacheSpec& kv = model.kv;
  const KvCacheSpec standard;
  if (kv.name == standard.name && kv.sinks == 0 && kv.window == 0) return;
  const nlohmann::ordered_json json = {{"name", kv.name},
                                       {"key", nlohmann::ordered_json::parse(ToJson(kv.key))},
                                       {"value", nlohmann::ordered_json::parse(ToJson(kv.value))},
                                       {"keys_before_rope", kv.keys_before_rope},
                                       {"sinks", kv.sinks},
                                       {"window", kv.window},
                                       {"page_tokens", kv.page_tokens}};
  WriteFileAtomically(folder / kSettings, json.dump(1) + "\n");
  if (kv.codebooks.empty()) return;
  SafetensorsWriter writer(folder / kCodebooks);
  for (size_t layer = 0; layer < kv.codebooks.size(); ++layer) {
    for (const Side& side : kSides) {
      const Format& format = kv.*side.format;
      const auto& stages = kv.codebooks[layer].*side.codebooks;
      for (size_t stage = 0; stage < stages.size(); ++stage) {
        const int64_t books = model.config.kv_width() / format.subvector;
        writer.Add(ArrayName(layer, side.name, stage), {books, format.entries[stage], format.subvector},
                   stages[stage]);
      }
    }
  }
  writer.Finish();
}

void ReadKvFiles(const fs::path& folder, Model& model) {
  const fs::path settings = folder / kSettings;
  if (!fs::exists(settings)) return;
  const nlohmann::json parsed = ParseJson(ReadTextFile(settings), settings.string());
  const JsonReader reader(parsed, settings.string());
  reader.AllowOnly({"name", "key", "value", "keys_before_rope", "sinks", "window", "page_tokens"});
  KvCacheSpec kv;
  kv.name = reader.String("name");
  for (const Side& side : kSides) {
    kv.*side.format = ParseFormat(reader.Object(side.name).value().dump());
    CheckKvFormat(kv.*side.format);
  }
  kv.keys_before_rope = reader.BoolOr("keys_before_rope", false);
  kv.sinks = static_cast<int>(reader.IntOr("sinks", 0, 1 << 20, 0));
  kv.window = static_cast<int>(reader.IntOr("window", 0, 1 << 20, 0));
  kv.page_tokens = static_cast<int>(reader.IntOr("page_tokens", 1, 4096, 32));
  if (kv.key.kind == FormatKind::kTable || kv.value.kind == FormatKind::kTable) {
    const TensorStore store = TensorStore::OpenFile(folder / kCodebooks);
    for (size_t layer = 0; layer < static_cast<size_t>(model.config.layers); ++layer) {
      KvCodebooks& codebooks = kv.codebooks.emplace_back();
      for (const Side& side : kSides) {
        const Format& format = kv.*side.format;
        if (format.kind != FormatKind::kTable) continue;
        for (size_t stage = 0; stage < format.entries.size(); ++stage) {
          const StoredTensor& stored = store.Get(ArrayName(layer, side.name, stage));
          RequireShape(stored,
                       {model.config.kv_width() / format.subvector, format.entries[stage], format.subvector});
          (codebooks.*side.codebooks).push_back(ReadHalves(stored));
        }
      }
    }
  }
  model.kv = std::move(kv);
}

}  // namespace vqllm
