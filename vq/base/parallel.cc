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
#include "vq/base/math.h"

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

/// One job at a time, cut into pieces that whoever is free claims. The job ends when all pieces are done, so
/// a worker that another process keeps from its core holds nothing up unless it has claimed a piece. Workers
/// wait by spinning a few microseconds and then sleeping: decode runs a job every 20 us or so, which a futex
/// wake would double, but a spin without end starves every other process of the machine.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_.store(true, std::memory_order_relaxed);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void Run(int64_t count, int64_t grain, internal::ChunkFunction function, void* context) {
    std::lock_guard one_job_at_a_time(jobs_);
    job_ = {count, grain, CeilDiv(count, grain), function, context};
    error_ = nullptr;
    done_.store(0, std::memory_order_relaxed);
    bool sleepers;
    {
      std::lock_guard lock(mutex_);
      unclaimed_.store(job_.pieces, std::memory_order_release);
      sleepers = sleepers_ > 0;
    }
    if (sleepers) wake_.notify_all();
    TakePieces();
    for (int spin = 0; done_.load(std::memory_order_acquire) != job_.pieces; ++spin) {
      if (spin < kSpins) {
        Pause();
      } else {
        std::this_thread::yield();
      }
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  static constexpr int kSpins = 4000;  // 50 to 200 us

  struct Job {
    int64_t count;
    int64_t grain;
    int64_t pieces;
    internal::ChunkFunction function;
    void* context;
  };

  bool Idle() const {
    return unclaimed_.load(std::memory_order_relaxed) == 0 && !stop_.load(std::memory_order_relaxed);
  }

  void Work() {
    while (true) {
      for (int spin = 0; spin < kSpins && Idle(); ++spin) Pause();
      if (Idle()) {
        std::unique_lock lock(mutex_);
        ++sleepers_;
        wake_.wait(lock, [&] { return !Idle(); });
        --sleepers_;
      }
      if (stop_.load(std::memory_order_relaxed)) return;
      TakePieces();
    }
  }

  /// A claim is what makes job_ safe to read: it stays as it is until the piece is counted as done.
  void TakePieces() {
    inside_parallel_for = true;
    int64_t unclaimed = unclaimed_.load(std::memory_order_relaxed);
    while (unclaimed > 0) {
      if (!unclaimed_.compare_exchange_weak(unclaimed, unclaimed - 1, std::memory_order_acq_rel)) continue;
      const int64_t begin = (job_.pieces - unclaimed) * job_.grain;
      try {
        job_.function(job_.context, begin, std::min(begin + job_.grain, job_.count));
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
      done_.fetch_add(1, std::memory_order_release);
      unclaimed = unclaimed_.load(std::memory_order_relaxed);
    }
    inside_parallel_for = false;
  }

  std::mutex jobs_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int64_t> unclaimed_{0};
  std::atomic<int64_t> done_{0};
  std::atomic<bool> stop_{false};
  int sleepers_ = 0;
  Job job_ = {};
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
