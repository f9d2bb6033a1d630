#include "vq/base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace vqllm {
namespace {

std::string Duration(double seconds) {
  const int whole = static_cast<int>(seconds + 0.5);
  return whole < 60 ? fmt::format("{} s", whole) : fmt::format("{} min {:02} s", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(std::string label, int64_t total)
    : label_(std::move(label)),
      total_(total),
      terminal_(::isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (printed_ && terminal_) fmt::print(stderr, "\r\033[K");
}

void Progress::Step(int64_t amount) {
  std::lock_guard lock(mutex_);
  done_ += amount;
  if (total_ <= 0) return;
  const Clock::time_point now = Clock::now();
  const double since_last = std::chrono::duration<double>(now - last_).count();
  if (since_last < (terminal_ ? (printed_ ? 0.2 : 1.0) : 10.0)) return;
  last_ = now;
  printed_ = true;
  Print(std::chrono::duration<double>(now - start_).count());
}

void Progress::Print(double seconds) {
  const double share = static_cast<double>(done_) / static_cast<double>(total_);
  const std::string line = fmt::format("{}: {} of {} ({:.0f} %), {} left", label_, done_, total_, 100 * share,
                                       Duration(seconds * (1 - share) / (share > 0 ? share : 1)));
  if (terminal_) {
    fmt::print(stderr, "\r\033[K{}", line);
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
}

}  // namespace vqllm
