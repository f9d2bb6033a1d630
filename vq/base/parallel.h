#pragma once

#include <cstdint>
#include <type_traits>

namespace vqllm {

namespace internal {
using ChunkFunction = void (*)(void* context, int64_t begin, int64_t end);
void RunChunks(int64_t count, int64_t grain, ChunkFunction function, void* context);
}  // namespace internal

/// Threads that ParallelFor uses, the caller among them. Starts as the number of cores this process may run
/// on.
int Threads();
/// Sets that number, >= 1. Not to be called while a ParallelFor runs.
void SetThreads(int threads);

/// Calls body(begin, end) for consecutive pieces of [0, count) of at most `grain` items each, on the one pool
/// of the process. The cut depends on count and grain alone, so a result that is reduced piece by piece is
/// the same at any thread count. A call inside a body runs in the caller's thread. The first exception of a
/// body is thrown here after all have ended.
template <typename Body>
void ParallelFor(int64_t count, int64_t grain, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  internal::RunChunks(
      count, grain,
      [](void* context, int64_t begin, int64_t end) { (*static_cast<Plain*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace vqllm
