#include "runtime/ptx/launch_shadow.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace vqllm::ptx {
namespace {

// Pages that nobody touches stay unmapped; zero is the value of a fresh T.
template <typename T>
T* Zeroed(uint64_t count) {
  void* memory = std::calloc(count, sizeof(T));
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<T*>(memory);
}

}  // namespace

LaunchShadow::Shadow::Shadow(const Segment& segment, bool races)
    : base(segment.base),
      sectors(segment.size / 32 + 1),
      touched(new std::atomic<uint8_t>[sectors]()),
      words(nullptr, std::free),
      sector_reads(nullptr, std::free) {
  if (!races) return;
  words.reset(Zeroed<Accesses>(sectors * 8));
  sector_reads.reset(Zeroed<Stamps>(sectors));
  part_count = segment.size / kPartBytes + 1;
  parts.reset(new std::atomic<Accesses*>[part_count]());
}

LaunchShadow::Shadow::~Shadow() {
  for (uint64_t i = 0; i < part_count; ++i) delete[] parts[i].load();
}

const LaunchShadow::Accesses* LaunchShadow::Shadow::FindByte(uint64_t offset) const {
  const Accesses* part = parts[offset / kPartBytes].load(std::memory_order_acquire);
  return part == nullptr ? nullptr : part + offset % kPartBytes;
}

LaunchShadow::Accesses& LaunchShadow::Shadow::Byte(uint64_t offset) {
  std::atomic<Accesses*>& place = parts[offset / kPartBytes];
  Accesses* part = place.load(std::memory_order_acquire);
  if (part == nullptr) {
    Accesses* const fresh = new Accesses[kPartBytes]();
    if (place.compare_exchange_strong(part, fresh, std::memory_order_acq_rel)) {
      part = fresh;
    } else {
      delete[] fresh;  // another worker was first
    }
  }
  return part[offset % kPartBytes];
}

LaunchShadow::LaunchShadow(const Memory& memory, bool races, bool ordered)
    : memory_(memory), races_(races), ordered_(ordered), segments_(memory.segments().size()) {}

LaunchShadow::~LaunchShadow() {
  for (const auto& shadow : segments_) delete shadow.load();
}

LaunchShadow::Shadow& LaunchShadow::At(int segment) {
  const size_t at = static_cast<size_t>(segment);
  std::atomic<Shadow*>& place = segments_[at];
  Shadow* shadow = place.load(std::memory_order_acquire);
  if (shadow == nullptr) {
    auto fresh = std::make_unique<Shadow>(*memory_.segments()[at], races_);
    if (place.compare_exchange_strong(shadow, fresh.get(), std::memory_order_acq_rel))
      shadow = fresh.release();
  }
  return *shadow;
}

template <typename Visit>
void LaunchShadow::ForEachTouched(const Visit& visit) const {
  for (const auto& place : segments_) {
    const Shadow* shadow = place.load(std::memory_order_acquire);
    if (shadow != nullptr) visit(*shadow);
  }
}

void LaunchShadow::History::AddReads(const Stamps& stamps) {
  last_read = std::max(last_read, stamps.last.load(std::memory_order_relaxed));
  first_read = std::min(first_read, ~stamps.first.load(std::memory_order_relaxed));
}

void LaunchShadow::History::Add(const Accesses& accesses) {
  AddReads(accesses.reads);
  last_write = std::max(last_write, accesses.writes.last.load(std::memory_order_relaxed));
  first_write = std::min(first_write, ~accesses.writes.first.load(std::memory_order_relaxed));
}

// Of the bytes of the mask: what was recorded for their word and for each of them.
LaunchShadow::History LaunchShadow::Look(const Shadow& shadow, uint64_t word, uint8_t bytes) {
  History history;
  history.Add(shadow.words.get()[word]);
  history.AddReads(shadow.sector_reads.get()[word / 8]);
  const Accesses* part = shadow.FindByte(word * 4);
  for (int b = 0; part != nullptr && b < 4; ++b) {
    if (bytes >> b & 1) history.Add(part[b]);
  }
  return history;
}

AccessSite LaunchShadow::SiteOf(Stamp stamp) {
  const uint32_t low = static_cast<uint32_t>(stamp);
  const uint32_t thread = low & ((1u << kThreadBits) - 1);
  return {low >> kThreadBits, (stamp >> kBlockShift) - 1, thread / kWarpSize,
          static_cast<int>(thread % kWarpSize)};
}

void LaunchShadow::Judge(const Shadow& shadow, uint64_t word, std::vector<Race>& races) {
  const bool whole = shadow.FindByte(word * 4) == nullptr;
  for (int b = 0; b < (whole ? 1 : 4); ++b) {
    const History history = Look(shadow, word, whole ? kWholeWord : static_cast<uint8_t>(1 << b));
    if (history.last_write == 0) continue;
    const auto differs = [&](Stamp stamp) {
      return stamp >> kBlockShift != history.first_write >> kBlockShift;
    };
    Race race{SiteOf(history.first_write), {}, shadow.base + word * 4 + static_cast<uint64_t>(b), false};
    if (differs(history.last_write)) {
      race.other = SiteOf(history.last_write);
      race.write_write = true;
    } else if (history.last_read != 0 && differs(history.first_read)) {
      race.other = SiteOf(history.first_read);
    } else if (history.last_read != 0 && differs(history.last_read)) {
      race.other = SiteOf(history.last_read);
    } else {
      continue;
    }
    races.push_back(race);
    return;
  }
}

std::vector<LaunchShadow::Race> LaunchShadow::Races() const {
  std::vector<Race> races;
  if (!races_ || ordered_) return races;
  ForEachTouched([&](const Shadow& shadow) {
    for (uint64_t sector = 0; sector < shadow.sectors; ++sector) {
      if ((shadow.touched[sector].load(std::memory_order_relaxed) & 2) == 0) continue;
      for (uint64_t w = sector * 8; w < sector * 8 + 8; ++w) Judge(shadow, w, races);
    }
  });
  return races;
}

uint64_t LaunchShadow::LoadedSectors() const {
  uint64_t n = 0;
  ForEachTouched([&](const Shadow& shadow) {
    for (uint64_t i = 0; i < shadow.sectors; ++i) n += shadow.touched[i].load(std::memory_order_relaxed) & 1;
  });
  return n;
}

uint64_t LaunchShadow::StoredSectors() const {
  uint64_t n = 0;
  ForEachTouched([&](const Shadow& shadow) {
    for (uint64_t i = 0; i < shadow.sectors; ++i)
      n += shadow.touched[i].load(std::memory_order_relaxed) >> 1 & 1;
  });
  return n;
}

}  // namespace vqllm::ptx
