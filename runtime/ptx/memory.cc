#include "runtime/ptx/memory.h"

#include <algorithm>
#include <cstring>

#include "runtime/ptx/program.h"
#include "vq/base/error.h"

namespace vqllm::ptx {
namespace {

constexpr uint64_t kAlign = 512;  // of cudaMalloc
constexpr uint64_t kGap = 4096;   // red zone between allocations

}  // namespace

uint64_t Memory::Allocate(uint64_t bytes, std::string name) {
  if (bytes > limit_ - allocated_) {
    Fail("device memory '{}': found {} bytes, allowed: {}", name, bytes, limit_ - allocated_);
  }
  auto segment = std::make_unique<Segment>();
  segment->base = next_;
  segment->size = bytes;
  segment->name = name.empty() ? fmt::format("0x{:x}", next_) : std::move(name);
  // 64 more bytes for the alignment, 64 for the widest access of a lane that is masked off.
  segment->storage = std::make_unique_for_overwrite<uint8_t[]>(bytes + 128);
  const uintptr_t raw = reinterpret_cast<uintptr_t>(segment->storage.get());
  segment->host = segment->storage.get() + ((raw + 63) / 64 * 64 - raw);
  std::memset(segment->host, 0xff, bytes);
  segment->written.assign(bytes / 64 + 1, 0);
  next_ += (bytes + kAlign - 1) / kAlign * kAlign + kGap;
  allocated_ += bytes;
  segments_.push_back(std::move(segment));
  return segments_.back()->base;
}

int Memory::Find(uint64_t address) const {
  const auto after = std::ranges::upper_bound(segments_, address, {}, [](const auto& s) { return s->base; });
  return static_cast<int>(after - segments_.begin()) - 1;
}

const Segment& Memory::Range(uint64_t address, uint64_t bytes, std::string_view what) const {
  const int found = Find(address);
  if (found < 0) Fail("{}: address 0x{:x} lies in no allocation", what, address);
  const Segment& segment = *segments_[static_cast<size_t>(found)];
  const uint64_t offset = address - segment.base;
  if (offset > segment.size || bytes > segment.size - offset) {
    Fail("{}: {} bytes at offset {} of '{}', allowed: up to its {} bytes", what, bytes, offset, segment.name,
         segment.size);
  }
  return segment;
}

void Memory::Free(uint64_t address) {
  const int found = Find(address);
  if (found < 0 || segments_[static_cast<size_t>(found)]->base != address) {
    Fail("free: 0x{:x} is not the address of an allocation", address);
  }
  allocated_ -= segments_[static_cast<size_t>(found)]->size;
  segments_.erase(segments_.begin() + found);
}

void Memory::CopyIn(uint64_t address, const void* data, uint64_t bytes) {
  Segment& segment = const_cast<Segment&>(Range(address, bytes, "copy to device"));
  if (bytes != 0) std::memcpy(segment.host + (address - segment.base), data, bytes);
  MarkWritten(segment, address - segment.base, bytes);
}

void Memory::CopyOut(void* data, uint64_t address, uint64_t bytes) const {
  const Segment& segment = Range(address, bytes, "copy from device");
  if (bytes != 0) std::memcpy(data, segment.host + (address - segment.base), bytes);
}

void Memory::Fill(uint64_t address, uint8_t value, uint64_t bytes) {
  Segment& segment = const_cast<Segment&>(Range(address, bytes, "fill"));
  std::memset(segment.host + (address - segment.base), value, bytes);
  MarkWritten(segment, address - segment.base, bytes);
}

void Memory::MarkWritten(Segment& segment, uint64_t offset, uint64_t bytes) {
  const uint64_t end = offset + bytes;
  while (offset < end) {
    if (offset % 64 == 0 && end - offset >= 64) {
      segment.written[offset / 64] = ~uint64_t{0};
      offset += 64;
    } else {
      segment.written[offset / 64] |= uint64_t{1} << (offset % 64);
      ++offset;
    }
  }
}

Memory::Instance& Memory::InstanceOf(const std::shared_ptr<const Program>& program) {
  for (const auto& instance : instances_) {
    if (instance->program == program) return *instance;
  }
  auto instance = std::make_unique<Instance>();
  instance->program = program;
  instance->addresses.assign(program->variables.size(), 0);
  instance->const_bank.assign(program->const_bank_bytes, 0);
  for (size_t i = 0; i < program->variables.size(); ++i) {
    const ProgramVariable& variable = program->variables[i];
    if (variable.space == Space::kConst) {
      std::ranges::copy(variable.initial,
                        instance->const_bank.begin() + static_cast<ptrdiff_t>(variable.const_offset));
    } else if (variable.space == Space::kGlobal) {
      instance->addresses[i] = Allocate(variable.bytes, variable.name);
      Fill(instance->addresses[i], 0, variable.bytes);
      CopyIn(instance->addresses[i], variable.initial.data(), variable.initial.size());
    }
  }
  instances_.push_back(std::move(instance));
  return *instances_.back();
}

}  // namespace vqllm::ptx
