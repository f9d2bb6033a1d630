#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

#include "vq/base/math.h"

namespace vqllm::cpu {

/// Memory at a cache line, and large blocks at a huge page: the weights of a layer span thousands of small
/// pages, and a decode step reads each once, so that every page would be a TLB miss.
template <typename T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}

  T* allocate(size_t n) {
    const size_t align = n * sizeof(T) >= kHugePage ? kHugePage : 64;
    const size_t bytes = RoundUp(n * sizeof(T), align);
    void* data = std::aligned_alloc(align, bytes);
    if (data == nullptr) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    if (align == kHugePage) madvise(data, bytes, MADV_HUGEPAGE);
#endif
    return static_cast<T*>(data);
  }
  void deallocate(T* data, size_t) { std::free(data); }
  bool operator==(const AlignedAllocator&) const { return true; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
};

template <typename T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

}  // namespace vqllm::cpu
