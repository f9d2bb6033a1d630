#include "runtime/ptx/global_shadow.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>

#include "runtime/ptx/warp.h"

namespace vqllm::ptx {
namespace {

template <typename T>
void RaiseTo(std::atomic<T>& place, T value) {
  T now = place.load(std::memory_order_relaxed);
  while (now < value && !place.compare_exchange_weak(now, value, std::memory_order_relaxed)) {
  }
}

// Pages that nobody touches stay unmapped; zero is the value of a fresh T.
template <typename T>
T* Zeroed(uint64_t count) {
  void* memory = std::calloc(count, sizeof(T));
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<T*>(memory);
}

constexpr int kPcBits = 24;
constexpr uint64_t kPcMask = (uint64_t{1} << kPcBits) - 1;

}  // namespace

LaunchShadow::LaunchShadow(const Memory& memory, bool races, bool ordered, uint64_t)
    : races_(races), ordered_(ordered) {
  for (const auto& segment : memory.segments()) {
    Shadow shadow;
    shadow.base = segment->base;
    shadow.sectors = segment->size / 32 + 1;
    shadow.touched.reset(new std::atomic<uint8_t>[shadow.sectors]());
    if (races) {
      shadow.reads = {Zeroed<Reads>(shadow.sectors * 8), std::free};
      shadow.sector_reads = {Zeroed<Reads>(shadow.sectors), std::free};
      shadow.writes = {Zeroed<Writes>(shadow.sectors * 8), std::free};
    }
    segments_.push_back(std::move(shadow));
  }
}

// Block + 1, zero for none.
uint32_t LaunchShadow::LastRead(const Shadow& shadow, uint64_t sector, uint64_t word) {
  return std::max(shadow.reads.get()[word].last.load(std::memory_order_relaxed),
                  shadow.sector_reads.get()[sector].last.load(std::memory_order_relaxed));
}
uint32_t LaunchShadow::FirstRead(const Shadow& shadow, uint64_t sector, uint64_t word) {
  return ~std::max(shadow.reads.get()[word].first.load(std::memory_order_relaxed),
                   shadow.sector_reads.get()[sector].first.load(std::memory_order_relaxed));
}

std::vector<LaunchShadow::Race> LaunchShadow::Races() const {
  std::vector<Race> races;
  if (!races_ || ordered_) return races;
  for (const Shadow& shadow : segments_) {
    for (uint64_t sector = 0; sector < shadow.sectors; ++sector) {
      if ((shadow.touched[sector].load(std::memory_order_relaxed) & 2) == 0) continue;
      for (uint64_t w = sector * 8; w < sector * 8 + 8; ++w) {
        const Writes& writes = shadow.writes.get()[w];
        const uint64_t last = writes.last.load(std::memory_order_relaxed);
        if (last == 0) continue;
        const uint64_t first = ~writes.first.load(std::memory_order_relaxed);
        const uint64_t writer = (first >> kPcBits) - 1;
        Race race{static_cast<uint32_t>(first & kPcMask), writer, shadow.base + w * 4, 0, false};
        const uint32_t last_read = LastRead(shadow, sector, w);
        const uint32_t first_read = FirstRead(shadow, sector, w);
        if ((last >> kPcBits) - 1 != writer) {
          race.other_block = (last >> kPcBits) - 1;
          race.write_write = true;
        } else if (last_read != 0 && first_read - 1 != writer) {
          race.other_block = first_read - 1;
        } else if (last_read != 0 && last_read - 1 != writer) {
          race.other_block = last_read - 1;
        } else {
          continue;
        }
        races.push_back(race);
      }
    }
  }
  return races;
}

uint64_t LaunchShadow::LoadedSectors() const {
  uint64_t n = 0;
  for (const Shadow& shadow : segments_) {
    for (uint64_t i = 0; i < shadow.sectors; ++i) n += shadow.touched[i].load(std::memory_order_relaxed) & 1;
  }
  return n;
}

uint64_t LaunchShadow::StoredSectors() const {
  uint64_t n = 0;
  for (const Shadow& shadow : segments_) {
    for (uint64_t i = 0; i < shadow.sectors; ++i)
      n += shadow.touched[i].load(std::memory_order_relaxed) >> 1 & 1;
  }
  return n;
}

GlobalShadow::GlobalShadow(LaunchShadow& launch, const Memory& memory, uint64_t blocks) : launch_(launch) {
  for (const auto& segment : memory.segments()) sectors_.emplace_back(segment->size / 32 + 1);
  if (launch.ordered_) visible_.assign(blocks, 0);
}

void GlobalShadow::BeginBlock(uint64_t block) {
  block_ = block;
  fenced_ = false;
  for (const uint32_t other : visible_list_) visible_[other] = 0;
  visible_list_.clear();
  seen_releases_.clear();
}

void GlobalShadow::Synchronise(uint64_t address) {
  if (!launch_.ordered_) return;
  std::vector<uint32_t>& releases = launch_.releases_[address];
  size_t& seen = seen_releases_[address];
  for (; seen < releases.size(); ++seen) {
    const uint32_t other = releases[seen];
    if (!visible_[other]) visible_list_.push_back(other);
    visible_[other] = 1;
  }
  if (fenced_ && (releases.empty() || releases.back() != block_)) {
    releases.push_back(static_cast<uint32_t>(block_));
  }
}

uint32_t GlobalShadow::Touch(Warp& warp, int segment, const SectorList& list, Access access, bool partial) {
  LaunchShadow::Shadow& shadow = launch_.segments_[static_cast<size_t>(segment)];
  std::vector<Sector>& sectors = sectors_[static_cast<size_t>(segment)];
  const uint64_t first = shadow.base >> 5;
  const uint32_t tag = static_cast<uint32_t>(block_) + 1;
  const bool is_store = access != Access::kLoad;
  uint32_t fresh = 0;
  for (uint32_t i = 0; i < list.count; ++i) {
    const uint64_t at = list.sector[i] - first;
    Sector& sector = sectors[at];
    if (sector.block != tag) sector = {tag, 0, 0};
    uint8_t& have = is_store ? sector.stored : sector.loaded;
    const uint8_t words = list.words[i];
    if (have == 0) {
      ++fresh;
      const uint8_t bit = access == Access::kAtomic ? 3 : is_store ? 2 : 1;
      std::atomic<uint8_t>& touched = shadow.touched[at];
      if ((touched.load(std::memory_order_relaxed) & bit) != bit)
        touched.fetch_or(bit, std::memory_order_relaxed);
    }
    const uint8_t news = static_cast<uint8_t>(words & ~have);
    if (news == 0) continue;
    have |= words;
    if (launch_.races_ && access != Access::kAtomic && !partial) Record(warp, shadow, at, news, is_store);
  }
  return fresh;
}

void GlobalShadow::Record(Warp& warp, LaunchShadow::Shadow& shadow, uint64_t sector, uint8_t words,
                          bool is_store) {
  const uint64_t stamp = (block_ + 1) << kPcBits | (warp.pc & kPcMask);
  const uint32_t tag = static_cast<uint32_t>(block_) + 1;
  if (!is_store && words == 0xff && !launch_.ordered_) {
    LaunchShadow::Reads& reads = shadow.sector_reads.get()[sector];
    RaiseTo(reads.last, tag);
    RaiseTo(reads.first, ~tag);
    return;
  }
  for (uint32_t mask = words; mask != 0; mask &= mask - 1) {
    const uint64_t word = sector * 8 + static_cast<uint64_t>(std::countr_zero(mask));
    if (launch_.ordered_) JudgeNow(warp, shadow, sector, word, is_store);
    if (is_store) {
      LaunchShadow::Writes& writes = shadow.writes.get()[word];
      RaiseTo(writes.last, stamp);
      RaiseTo(writes.first, ~stamp);
    } else {
      LaunchShadow::Reads& reads = shadow.reads.get()[word];
      RaiseTo(reads.last, tag);
      RaiseTo(reads.first, ~tag);
    }
  }
}

void GlobalShadow::JudgeNow(Warp& warp, const LaunchShadow::Shadow& shadow, uint64_t sector, uint64_t word,
                            bool is_store) {
  if (shadow.touched[sector].load(std::memory_order_relaxed) < 2) return;  // nobody stored here
  const uint64_t last = shadow.writes.get()[word].last.load(std::memory_order_relaxed);
  const uint32_t reader = shadow.reads.get()[word].last.load(std::memory_order_relaxed);
  const uint64_t address = shadow.base + word * 4;
  if (last != 0 && !Ordered((last >> kPcBits) - 1)) {
    warp.block->Report(HazardKind::kGlobalRace, warp, 0, address,
                       is_store ? "written by another block too" : "written by another block");
  } else if (is_store && reader != 0 && !Ordered(reader - 1)) {
    warp.block->Report(HazardKind::kGlobalRace, warp, 0, address, "read by another block");
  }
}

}  // namespace vqllm::ptx
