#include "vq/checkpoint/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "vq/base/error.h"
#include "vq/base/file.h"

namespace vqllm {
namespace {

using nlohmann::json;

/// What the header says of one tensor, not yet compared with the file.
struct Entry {
  std::string name;
  std::optional<std::string> type;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

/// Takes the header apart as it is parsed. A document tree would hide names that come twice and would cost a
/// hostile header many times its size in memory.
class HeaderReader : public json::json_sax_t {
 public:
  explicit HeaderReader(const std::string& where) : where_(where) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) return Go(Place::kTop);
    if (place_ != Place::kTop) Unexpected("an object");
    return Go(key_ == "__metadata__" ? Place::kMetadata : Place::kTensor);
  }

  bool key(std::string& text) override {
    if (place_ == Place::kMetadata) {
      if (!metadata.try_emplace(text).second) Fail("{}: __metadata__: {} comes twice", where_, Quoted(text));
    } else if (place_ == Place::kTop && text == "__metadata__") {
      if (std::exchange(seen_metadata_, true)) Fail("{}: __metadata__ comes twice", where_);
    } else if (place_ == Place::kTop) {
      if (!names_.try_emplace(text).second) Fail("{}: {} comes twice", where_, Quoted(text));
      entries.push_back({.name = text, .type = {}, .shape = {}, .offsets = {}});
    }
    key_ = std::move(text);
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTop) return Go(Place::kEnd);
    if (place_ == Place::kTensor) {
      const Entry& entry = entries.back();
      if (!entry.type) Missing("dtype");
      if (!entry.shape) Missing("shape");
      if (!entry.offsets) Missing("data_offsets");
    }
    return Go(Place::kTop);
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      Once(entries.back().shape).emplace();
      return Go(Place::kShape);
    }
    if (place_ == Place::kTensor && key_ == "data_offsets") {
      Once(entries.back().offsets).emplace();
      return Go(Place::kOffsets);
    }
    Unexpected("a list");
  }

  bool end_array() override { return Go(Place::kTensor); }

  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::kShape) {
      entries.back().shape->push_back(value);
    } else if (place_ == Place::kOffsets) {
      entries.back().offsets->push_back(value);
    } else {
      Unexpected(std::to_string(value));
    }
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::kMetadata) {
      metadata[key_] = std::move(text);
    } else if (place_ == Place::kTensor && key_ == "dtype") {
      Once(entries.back().type) = std::move(text);
    } else {
      Unexpected("a string");
    }
    return true;
  }

  bool null() override { Unexpected("null"); }
  bool boolean(bool) override { Unexpected("a boolean"); }
  bool number_integer(int64_t value) override { Unexpected(std::to_string(value)); }
  bool number_float(double, const std::string& text) override { Unexpected(text); }
  bool binary(json::binary_t&) override { Unexpected("binary"); }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    Fail("{}: header: not valid JSON in UTF-8 at byte {}", where_, position);
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool Go(Place place) {
    place_ = place;
    return true;
  }

  template <typename T>
  std::optional<T>& Once(std::optional<T>& field) {
    if (field) Fail("{}: {}: {} comes twice", where_, Quoted(entries.back().name), key_);
    return field;
  }

  [[noreturn]] void Missing(const char* field) {
    Fail("{}: {}: {} is missing", where_, Quoted(entries.back().name), field);
  }

  [[noreturn]] void Unexpected(const std::string& found) {
    const bool in_tensor = place_ == Place::kTensor || place_ == Place::kShape || place_ == Place::kOffsets;
    const char* allowed = in_tensor ? "dtype: string, shape: [sizes], data_offsets: [begin, end]"
                          : place_ == Place::kMetadata ? "strings"
                                                       : "an object for each tensor";
    Fail("{}: header: {}: {}: found {}, allowed: {}", where_,
         in_tensor ? Quoted(entries.back().name) : std::string("top"), Quoted(key_), Quoted(found), allowed);
  }

  const std::string& where_;
  Place place_ = Place::kStart;
  std::string key_;
  std::map<std::string, bool> names_;
  bool seen_metadata_ = false;
};

/// The tensor of a header entry, with its bytes inside `data`.
StoredTensor Locate(Entry entry, const Bytes& data, const std::string& where) {
  StoredTensor tensor;
  tensor.name = std::move(entry.name);
  tensor.where = fmt::format("{}: {}", where, Quoted(tensor.name));
  tensor.type_name = std::move(*entry.type);
  tensor.type = StoredTypeOf(tensor.type_name);
  for (const uint64_t size : *entry.shape) {
    if (size > static_cast<uint64_t>(INT64_MAX))
      Fail("{}: shape: found {}, allowed: 63 bits", tensor.where, size);
    tensor.shape.push_back(static_cast<int64_t>(size));
  }
  const std::vector<uint64_t>& offsets = *entry.offsets;
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data.size()) {
    Fail("{}: data_offsets: found [{}], allowed: [begin, end] with begin <= end <= {}", tensor.where,
         fmt::join(offsets, ", "), data.size());
  }
  const uint64_t size = offsets[1] - offsets[0];
  const int64_t elements = tensor.elements();
  int64_t bytes = 0;
  if (elements < 0 || __builtin_mul_overflow(elements, int64_t{BytesPerElement(tensor.type)}, &bytes)) {
    Fail("{}: shape {} of {} does not fit in 63 bits", tensor.where, ShapeText(tensor.shape),
         Quoted(tensor.type_name));
  }
  if (tensor.type != StoredType::kOther && static_cast<uint64_t>(bytes) != size) {
    Fail("{}: shape {} of {} takes {} bytes, but data_offsets span {}", tensor.where, ShapeText(tensor.shape),
         tensor.type_name, bytes, size);
  }
  tensor.bytes = data.Slice(offsets[0], size);
  return tensor;
}

/// The bytes of the header; throws unless its length is believable.
std::string_view HeaderText(const Bytes& file, const std::string& where) {
  if (file.size() < 8) Fail("{}: {} bytes, too short for a safetensors file", where, file.size());
  const uint64_t length = file.Load<uint64_t>(0);
  const uint64_t limit = std::min<uint64_t>(SafetensorsFile::kMaxHeaderBytes, file.size() - 8);
  if (length > limit) Fail("{}: header length: found {}, allowed: at most {}", where, length, limit);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  if (!text.starts_with('{'))
    Fail("{}: header: found {}, allowed: a JSON object", where, Quoted(text.substr(0, 8)));
  return text;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : SafetensorsFile(MapFile(path), path.string()) {}

SafetensorsFile::SafetensorsFile(Bytes file, std::string where) : where_(std::move(where)) {
  const std::string_view text = HeaderText(file, where_);
  HeaderReader header(where_);
  json::sax_parse(text.begin(), text.end(), &header);
  metadata_ = std::move(header.metadata);

  const Bytes data = file.Slice(8 + text.size(), file.size() - 8 - text.size());
  tensors_.reserve(header.entries.size());
  for (Entry& entry : header.entries) tensors_.push_back(Locate(std::move(entry), data, where_));

  const auto begin_of = [&](const StoredTensor& tensor) { return tensor.bytes.data() - data.data(); };
  std::sort(tensors_.begin(), tensors_.end(), [&](const StoredTensor& a, const StoredTensor& b) {
    return std::tuple(begin_of(a), a.bytes.size()) < std::tuple(begin_of(b), b.bytes.size());
  });
  size_t end = 0;
  for (const StoredTensor& tensor : tensors_) {
    const size_t begin = static_cast<size_t>(begin_of(tensor));
    if (begin < end) Fail("{}: begins at {}, but the tensor before it ends at {}", tensor.where, begin, end);
    if (begin > end)
      Fail("{}: begins at {}, which leaves a hole of {} bytes", tensor.where, begin, begin - end);
    end = begin + tensor.bytes.size();
  }
  if (end != data.size()) Fail("{}: {} bytes of data, but the tensors take {}", where_, data.size(), end);
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

const StoredTensor* SafetensorsFile::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace vqllm
