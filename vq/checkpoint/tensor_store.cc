#include "vq/checkpoint/tensor_store.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "vq/base/error.h"
#include "vq/base/file.h"
#include "vq/base/json_reader.h"

namespace vqllm {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kShardSuffix = ".safetensors";

/// A shard is a file of the folder itself: an index must not reach outside of it.
void CheckShardName(const std::string& name, const std::string& where) {
  const bool plain = name.size() > kShardSuffix.size() && name.ends_with(kShardSuffix) &&
                     name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
  if (!plain)
    Fail("{}: weight_map: found {}, allowed: the name of a {} file", where, Quoted(name), kShardSuffix);
}

/// The index: for each shard, the names it should hold. Names and files come in the order of the alphabet.
std::map<std::string, std::vector<std::string>> ReadIndex(const fs::path& path) {
  const std::string where = path.string();
  const nlohmann::json parsed = ParseJson(ReadTextFile(path), where);
  const JsonReader weight_map = JsonReader(parsed, where).Object("weight_map");
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [name, shard] : weight_map.value().items()) {
    if (!shard.is_string()) Fail("{}: weight_map: {}: allowed: the name of a file", where, Quoted(name));
    const auto& file = shard.get_ref<const std::string&>();
    CheckShardName(file, where);
    shards[file].push_back(name);
  }
  if (shards.empty()) Fail("{}: weight_map is empty", where);
  return shards;
}

}  // namespace

std::string NameList(const std::vector<std::string>& names) {
  constexpr size_t kShown = 32;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(kShown, names.size()); ++i) shown.push_back(Quoted(names[i]));
  std::string text = fmt::format("{}", fmt::join(shown, ", "));
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

TensorStore TensorStore::OpenFile(const fs::path& file) {
  TensorStore store;
  store.where_ = file.string();
  store.AddFile(SafetensorsFile(file));
  return store;
}

TensorStore TensorStore::OpenFolder(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) Fail("{}: not a folder", folder.string());
  TensorStore store;
  store.where_ = folder.string();
  const bool index = fs::exists(folder / kIndexName, ignored);
  if (fs::exists(folder / kSingleName, ignored)) {
    store.AddFile(SafetensorsFile(folder / kSingleName));
    if (index) store.notes_.push_back(fmt::format("{}: ignored beside {}", kIndexName, kSingleName));
    store.NoteStrayShards(folder, {{kSingleName, true}});
  } else if (index) {
    store.AddShards(folder);
  } else {
    Fail("{}: neither {} nor {} is there", folder.string(), kSingleName, kIndexName);
  }
  return store;
}

void TensorStore::AddFile(const SafetensorsFile& file) {
  for (const StoredTensor& tensor : file.tensors()) tensors_.emplace(tensor.name, tensor);
  metadata_.insert(file.metadata().begin(), file.metadata().end());
}

void TensorStore::AddShards(const fs::path& folder) {
  const std::string index = (folder / kIndexName).string();
  std::map<std::string, bool> listed;
  std::map<std::string, std::string, std::less<>> home;  // tensor -> shard that holds it
  std::vector<std::string> missing, unlisted;
  std::vector<std::string> absent_shards;
  for (const auto& [shard, names] : ReadIndex(folder / kIndexName)) {
    listed[shard] = true;
    std::error_code ignored;
    if (!fs::exists(folder / shard, ignored)) {
      absent_shards.push_back(shard);
      missing.insert(missing.end(), names.begin(), names.end());
      continue;
    }
    const SafetensorsFile file(folder / shard);
    for (const std::string& name : names) {
      if (file.Find(name) == nullptr) missing.push_back(name);
    }
    for (const StoredTensor& tensor : file.tensors()) {
      const auto [other, is_new] = home.emplace(tensor.name, shard);
      if (!is_new) Fail("{}: also in {}: a tensor may lie in one shard only", tensor.where, other->second);
      if (!std::binary_search(names.begin(), names.end(), tensor.name)) unlisted.push_back(tensor.name);
    }
    AddFile(file);
  }
  if (!missing.empty()) {
    Fail("{}: {} listed tensors are missing: {}{}{}", index, missing.size(), NameList(missing),
         absent_shards.empty() ? "" : "; absent shards: ", NameList(absent_shards));
  }
  if (!unlisted.empty()) {
    for (const std::string& name : unlisted) tensors_.erase(name);
    notes_.push_back(
        fmt::format("{}: tensors that it does not list were ignored: {}", kIndexName, NameList(unlisted)));
  }
  NoteStrayShards(folder, listed);
}

void TensorStore::NoteStrayShards(const fs::path& folder, const std::map<std::string, bool>& listed) {
  std::vector<std::string> stray;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("model") && name.ends_with(kShardSuffix) && !listed.contains(name))
      stray.push_back(name);
  }
  if (stray.empty()) return;
  std::sort(stray.begin(), stray.end());
  notes_.push_back(fmt::format("stray shards were ignored: {}", NameList(stray)));
}

const StoredTensor* TensorStore::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const StoredTensor& TensorStore::Get(std::string_view name) const {
  const StoredTensor* tensor = Find(name);
  if (tensor == nullptr) Fail("{}: tensor {} is missing", where_, Quoted(name));
  return *tensor;
}

void TensorStore::Require(const std::vector<std::string>& names) const {
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    if (!Has(name)) missing.push_back(name);
  }
  if (!missing.empty()) Fail("{}: {} tensors are missing: {}", where_, missing.size(), NameList(missing));
}

std::vector<std::string> TensorStore::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

}  // namespace vqllm
