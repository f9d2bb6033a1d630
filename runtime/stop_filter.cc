#include <algorithm>
#include <utility>

#include "runtime/generate.h"
#include "vq/base/error.h"

namespace vqllm {

StopFilter::StopFilter(std::vector<std::string> stop) : stop_(std::move(stop)) {
  for (const std::string& text : stop_) {
    if (text.empty()) Fail("stop: found an empty string, allowed: at least one character");
  }
}

std::string StopFilter::Push(std::string_view piece) {
  if (stopped_) return {};
  held_ += piece;
  size_t first = std::string::npos;
  for (const std::string& text : stop_) first = std::min(first, held_.find(text));
  if (first != std::string::npos) {
    stopped_ = true;
    std::string certain = held_.substr(0, first);
    held_.clear();
    return certain;
  }
  // The longest tail that begins some stop string stays.
  size_t keep = 0;
  for (const std::string& text : stop_) {
    for (size_t length = std::min(text.size() - 1, held_.size()); length > keep; --length) {
      if (std::string_view(held_).substr(held_.size() - length) == std::string_view(text).substr(0, length)) {
        keep = length;
      }
    }
  }
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopFilter::Finish() { return std::exchange(held_, {}); }

}  // namespace vqllm
