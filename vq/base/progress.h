#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace vqllm {

/// Progress of long work on stderr: one line that is redrawn with an ETA on a terminal, else a plain line
/// about every ten seconds. Silent for work of under a second. Step may be called from several threads.
class Progress {
 public:
  /// `total` in units of the caller's choice; 0 makes an object that never prints.
  Progress(std::string label, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Step(int64_t amount = 1);

 private:
  void Print(double seconds);

  using Clock = std::chrono::steady_clock;
  std::mutex mutex_;
  std::string label_;
  int64_t total_;
  int64_t done_ = 0;
  bool terminal_;
  bool printed_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

}  // namespace vqllm
