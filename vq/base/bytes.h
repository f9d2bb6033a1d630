#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace vqllm {

/// Read-only bytes with shared ownership: a piece of a memory-mapped file, or a vector of our own. Copies
/// share.
class Bytes {
 public:
  Bytes() = default;
  /// `data` stays valid as long as `owner` lives.
  Bytes(std::shared_ptr<const void> owner, const uint8_t* data, size_t size)
      : owner_(std::move(owner)), data_(data), size_(size) {}

  /// Takes over a vector of any trivially copyable element.
  template <typename T>
  static Bytes Own(std::vector<T> values) {
    auto owner = std::make_shared<const std::vector<T>>(std::move(values));
    return Bytes(owner, reinterpret_cast<const uint8_t*>(owner->data()), owner->size() * sizeof(T));
  }

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Bytes Slice(size_t begin, size_t size) const { return Bytes(owner_, data_ + begin, size); }

  /// The bytes as elements of T. Checkpoints do not promise alignment: use Load for those.
  template <typename T>
  std::span<const T> As() const {
    return {reinterpret_cast<const T*>(data_), size_ / sizeof(T)};
  }
  /// Element `index` of T at any alignment.
  template <typename T>
  T Load(size_t index) const {
    T value;
    std::memcpy(&value, data_ + index * sizeof(T), sizeof(T));
    return value;
  }

 private:
  std::shared_ptr<const void> owner_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace vqllm
