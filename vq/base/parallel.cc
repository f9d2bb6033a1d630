#include "vq/base/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "vq/base/check.h"

namespace vqllm {
namespace {

thread_local bool inside_parallel_for = false;

int AvailableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Workers wait for a job by spinning a few microseconds and then sleeping: decode runs a job every 20 us or
/// so, which a futex wake would double, but a spin without end starves every other process of the machine.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void Run(int64_t count, int64_t grain, internal::ChunkFunction function, void* context) {
    std::lock_guard one_job_at_a_time(jobs_);
    count_ = count;
    grain_ = grain;
    function_ = function;
    context_ = context;
    error_ = nullptr;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    {
      std::lock_guard lock(mutex_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_.notify_all();
    TakeChunks();
    for (int spin = 0; busy_.load(std::memory_order_acquire) != 0; ++spin) {
      if (spin < kSpins) {
        Pause();
      } else {
        std::this_thread::yield();
      }
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  static constexpr int kSpins = 4000;  // about 50 us

  void Work() {
    uint64_t seen = 0;
    while (true) {
      for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin)
        Pause();
      if (generation_.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex_);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
      }
      seen = generation_.load(std::memory_order_acquire);
      if (stop_) return;
      TakeChunks();
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }

  void TakeChunks() {
    inside_parallel_for = true;
    while (true) {
      const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
      if (begin >= count_) break;
      try {
        function_(context_, begin, std::min(begin + grain_, count_));
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
    }
    inside_parallel_for = false;
  }

  std::mutex jobs_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<int> busy_{0};
  std::atomic<int64_t> next_{0};
  bool stop_ = false;
  int64_t count_ = 0;
  int64_t grain_ = 1;
  internal::ChunkFunction function_ = nullptr;
  void* context_ = nullptr;
  std::exception_ptr error_;
  std::vector<std::thread> workers_;
};

std::unique_ptr<Pool>& ThePool() {
  static std::unique_ptr<Pool> pool = std::make_unique<Pool>(AvailableCores());
  return pool;
}

}  // namespace

int Threads() { return ThePool()->threads(); }

void SetThreads(int threads) {
  VQLLM_CHECK(threads >= 1, "{} threads", threads);
  if (threads != Threads()) ThePool() = std::make_unique<Pool>(threads);
}

namespace internal {

void RunChunks(int64_t count, int64_t grain, ChunkFunction function, void* context) {
  VQLLM_CHECK(grain >= 1, "grain {}", grain);
  if (count <= 0) return;
  if (inside_parallel_for || count <= grain || Threads() == 1) {
    for (int64_t begin = 0; begin < count; begin += grain)
      function(context, begin, std::min(begin + grain, count));
    return;
  }
  ThePool()->Run(count, grain, function, context);
}

}  // namespace internal
}  // namespace vqllm
