#include "vq/checkpoint/safetensors_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "vq/base/check.h"
#include "vq/base/file.h"

namespace vqllm {
namespace {

int64_t ByteCount(StoredType type, const std::vector<int64_t>& shape) {
  return ElementCount(shape) * BytesPerElement(type);
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path) : path_(std::move(path)) {}

void SafetensorsWriter::SetMetadata(std::string key, std::string value) {
  metadata_[std::move(key)] = std::move(value);
}

void SafetensorsWriter::Add(std::string name, StoredType type, std::vector<int64_t> shape,
                            std::function<Bytes()> make) {
  VQLLM_CHECK(type != StoredType::kOther && ElementCount(shape) >= 0, "{}", name);
  items_.push_back({std::move(name), type, std::move(shape), std::move(make)});
}

void SafetensorsWriter::Add(std::string name, StoredType type, std::vector<int64_t> shape, Bytes bytes) {
  Add(std::move(name), type, std::move(shape), [bytes = std::move(bytes)] { return bytes; });
}

void SafetensorsWriter::Add(std::string name, std::vector<int64_t> shape, const std::vector<float>& values) {
  Add(std::move(name), StoredType::kF32, std::move(shape), Bytes::Own(values));
}

void SafetensorsWriter::Add(std::string name, std::vector<int64_t> shape, const std::vector<Half>& values) {
  Add(std::move(name), StoredType::kF16, std::move(shape), Bytes::Own(values));
}

std::string SafetensorsWriter::Header() const {
  nlohmann::ordered_json header;
  if (!metadata_.empty()) header["__metadata__"] = metadata_;
  int64_t begin = 0;
  for (const Item& item : items_) {
    const int64_t end = begin + ByteCount(item.type, item.shape);
    header[item.name] = {
        {"dtype", ToString(item.type)}, {"shape", item.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

void SafetensorsWriter::Finish() {
  std::sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
    return std::tuple(-BytesPerElement(a.type), std::string_view(a.name)) <
           std::tuple(-BytesPerElement(b.type), std::string_view(b.name));
  });
  std::map<std::string_view, bool> names;
  for (const Item& item : items_) {
    VQLLM_CHECK(item.name != "__metadata__" && names.try_emplace(item.name).second, "{} comes twice",
                item.name);
  }

  NewFile file(path_);
  const std::string header = Header();
  const uint64_t length = header.size();
  file.Write(&length, sizeof(length));
  file.Write(header.data(), header.size());
  for (const Item& item : items_) {
    const Bytes bytes = item.make();
    VQLLM_CHECK(static_cast<int64_t>(bytes.size()) == ByteCount(item.type, item.shape),
                "{}: {} bytes, shape {}", item.name, bytes.size(), ShapeText(item.shape));
    file.Write(bytes.data(), bytes.size());
  }
  file.Commit();
  items_.clear();
}

}  // namespace vqllm
