#include "vq/checkpoint/gguf.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "vq/base/error.h"
#include "vq/base/file.h"
#include "vq/base/math.h"
#include "vq/checkpoint/stored_tensor.h"

namespace vqllm {
namespace {

constexpr int kMaxDimensions = 4;  // GGML_MAX_DIMS
constexpr int kMaxNesting = 4;     // arrays in arrays; no known file has any
constexpr int64_t kDefaultAlignment = 32;
constexpr int64_t kMaxAlignment = 1 << 20;

struct TypeRow {
  const char* name;
  int bytes;  // 0: of its own length
};
constexpr TypeRow kTypes[] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},    {"u32", 4},
                              {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 0}, {"array", 0},
                              {"u64", 8}, {"i64", 8}, {"f64", 8}};

int FixedBytes(GgufType type) { return kTypes[static_cast<size_t>(type)].bytes; }

}  // namespace

const char* ToString(GgufType type) { return kTypes[static_cast<size_t>(type)].name; }

/// Reads on from a position and throws at the end of the file.
class GgufFile::Reader {
 public:
  Reader(const Bytes& file, const std::string& where) : file_(file), where_(where) {}

  size_t position() const { return position_; }
  size_t left() const { return file_.size() - position_; }

  /// The next `size` bytes.
  Bytes Take(uint64_t size, std::string_view what) {
    if (size > left()) Stop(fmt::format("{} of {} bytes, but {} are left", what, size, left()));
    const Bytes bytes = file_.Slice(position_, size);
    position_ += size;
    return bytes;
  }

  template <typename T>
  T Number(std::string_view what) {
    return Take(sizeof(T), what).template Load<T>(0);
  }

  std::string_view Text(std::string_view what) {
    const Bytes bytes = Take(Number<uint64_t>(what), what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  GgufType Type() {
    const uint32_t type = Number<uint32_t>("type");
    if (type >= std::size(kTypes))
      Stop(fmt::format("value type: found {}, allowed: 0 to {}", type, std::size(kTypes) - 1));
    return static_cast<GgufType>(type);
  }

  Value ReadValue() {
    Value value{.type = Type(), .element = GgufType::kU8, .count = 1, .raw = {}};
    value.element = value.type;
    if (value.type == GgufType::kArray) {
      value.element = Type();
      value.count = Number<uint64_t>("array length");
    }
    const size_t begin = position_;
    Walk(value.element, value.count, 1);
    value.raw = file_.Slice(begin, position_ - begin);
    return value;
  }

  [[noreturn]] void Stop(std::string_view problem) const {
    Fail("{}: at byte {}: {}", where_, position_, problem);
  }

 private:
  /// Steps over `count` elements and checks them.
  void Walk(GgufType element, uint64_t count, int depth) {
    if (const int bytes = FixedBytes(element); bytes > 0) {
      if (count > left() / static_cast<size_t>(bytes)) {
        Stop(fmt::format("{} values of {}, but {} bytes are left", count, ToString(element), left()));
      }
      const Bytes raw = Take(count * static_cast<uint64_t>(bytes), "values");
      if (element != GgufType::kBool) return;
      for (size_t i = 0; i < raw.size(); ++i) {
        if (raw.data()[i] > 1) Stop(fmt::format("bool: found {}, allowed: 0, 1", raw.data()[i]));
      }
      return;
    }
    if (depth > kMaxNesting) Stop(fmt::format("arrays nested deeper than {}", kMaxNesting));
    for (uint64_t i = 0; i < count; ++i) {
      if (element == GgufType::kString) {
        Text("string");
      } else {
        const GgufType inner = Type();
        Walk(inner, Number<uint64_t>("array length"), depth + 1);
      }
    }
  }

  const Bytes& file_;
  const std::string& where_;
  size_t position_ = 0;
};

GgufFile::GgufFile(const std::filesystem::path& path) : GgufFile(MapFile(path), path.string()) {}

GgufFile::GgufFile(Bytes file, std::string where) : where_(std::move(where)) {
  Reader reader(file, where_);
  const Bytes magic = reader.Take(4, "magic");
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) Fail("{}: not a GGUF file", where_);
  const uint32_t version = reader.Number<uint32_t>("version");
  if (version == 0x02000000 || version == 0x03000000) Fail("{}: big-endian GGUF files are not read", where_);
  if (version != 2 && version != 3) Fail("{}: GGUF version: found {}, allowed: 2, 3", where_, version);
  version_ = static_cast<int>(version);
  const uint64_t tensor_count = reader.Number<uint64_t>("tensor count");
  const uint64_t value_count = reader.Number<uint64_t>("metadata count");

  for (uint64_t i = 0; i < value_count; ++i) {
    std::string key(reader.Text("key"));
    Value value = reader.ReadValue();
    const auto [at, is_new] = values_.try_emplace(std::move(key), std::move(value));
    if (!is_new) Fail("{}: key {} comes twice", where_, Quoted(at->first));
  }

  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    GgufTensor tensor;
    tensor.name = reader.Text("tensor name");
    tensor.where = fmt::format("{}: {}", where_, Quoted(tensor.name));
    const uint32_t dimensions = reader.Number<uint32_t>("dimensions");
    if (dimensions > kMaxDimensions) {
      Fail("{}: dimensions: found {}, allowed: at most {}", tensor.where, dimensions, kMaxDimensions);
    }
    for (uint32_t d = 0; d < dimensions; ++d) {
      const uint64_t size = reader.Number<uint64_t>("dimension");
      if (size > static_cast<uint64_t>(INT64_MAX))
        Fail("{}: shape: found {}, allowed: 63 bits", tensor.where, size);
      tensor.shape.push_back(static_cast<int64_t>(size));
    }
    std::reverse(tensor.shape.begin(), tensor.shape.end());
    tensor.type_id = reader.Number<uint32_t>("tensor type");
    tensor.type = FindGgmlType(tensor.type_id);
    offsets.push_back(reader.Number<uint64_t>("tensor offset"));
    if (!by_name_.emplace(tensor.name, tensors_.size()).second) Fail("{}: comes twice", tensor.where);
    tensors_.push_back(std::move(tensor));
  }
  LocateTensors(file, reader.position(), offsets);
  CheckOverlap();
}

void GgufFile::LocateTensors(const Bytes& file, uint64_t data_begin, const std::vector<uint64_t>& offsets) {
  const auto alignment =
      static_cast<uint64_t>(IntOr("general.alignment", 1, kMaxAlignment, kDefaultAlignment));
  if (!std::has_single_bit(alignment)) {
    Fail("{}: general.alignment: found {}, allowed: powers of two", where_, alignment);
  }
  // A file with metadata alone may end before the padding does.
  data_begin = std::min<uint64_t>(RoundUp(data_begin, alignment), file.size());
  const Bytes data = file.Slice(data_begin, file.size() - data_begin);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    GgufTensor& tensor = tensors_[i];
    const uint64_t offset = offsets[i];
    if (offset % alignment != 0 || offset > data.size()) {
      Fail("{}: offset: found {}, allowed: multiples of {} up to {}", tensor.where, offset, alignment,
           data.size());
    }
    if (tensor.type == nullptr) continue;  // nobody knows where it ends; reading it is refused
    const int64_t count = ElementCount(tensor.shape);
    const int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (columns % tensor.type->elements != 0) {
      Fail("{}: row length: found {}, allowed: multiples of {} for {}", tensor.where, columns,
           tensor.type->elements, tensor.type->name);
    }
    int64_t bytes = 0;
    const bool fits = count >= 0 && !__builtin_mul_overflow(count / tensor.type->elements,
                                                            int64_t{tensor.type->bytes}, &bytes);
    if (!fits || static_cast<uint64_t>(bytes) > data.size() - offset) {
      Fail("{}: shape {} of {} from offset {} does not fit in the {} bytes of data", tensor.where,
           ShapeText(tensor.shape), tensor.type->name, offset, data.size());
    }
    tensor.bytes = data.Slice(offset, static_cast<size_t>(bytes));
  }
}

void GgufFile::CheckOverlap() const {
  std::vector<const GgufTensor*> order;
  for (const GgufTensor& tensor : tensors_) {
    if (!tensor.bytes.empty()) order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->bytes.data() < b->bytes.data(); });
  for (size_t i = 1; i < order.size(); ++i) {
    const Bytes& before = order[i - 1]->bytes;
    if (before.data() + before.size() > order[i]->bytes.data()) {
      Fail("{}: overlaps tensor {}", order[i]->where, Quoted(order[i - 1]->name));
    }
  }
}

const GgufTensor* GgufFile::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const GgufTensor& GgufFile::Get(std::string_view name) const {
  const GgufTensor* tensor = Find(name);
  if (tensor == nullptr) Fail("{}: tensor {} is missing", where_, Quoted(name));
  return *tensor;
}

}  // namespace vqllm
