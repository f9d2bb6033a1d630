#include "runtime/ptx/global_shadow.h"

#include <algorithm>
#include <bit>

#include "runtime/ptx/warp.h"

namespace vqllm::ptx {
namespace {

// The bytes of each sector that the lanes touch, a bit each, in the order of the list.
void CoveredBytes(const GlobalShadow::Request& request, const SectorList& list, uint32_t* covered) {
  std::fill_n(covered, list.count, 0u);
  const uint32_t run = (1u << request.bytes) - 1;
  uint32_t at = 0;
  for (uint32_t mask = request.mask; mask != 0; mask &= mask - 1) {
    const uint64_t address = request.lanes.address[std::countr_zero(mask)];
    while (list.sector[at] != address >> 5) at = at + 1 == list.count ? 0 : at + 1;
    covered[at] |= run << (address & 31);
  }
}

// The words of a sector of which all bytes are there, a bit each.
uint8_t WholeWords(uint32_t bytes) {
  const uint32_t pairs = bytes & bytes >> 1;
  const uint32_t whole = pairs & pairs >> 2 & 0x11111111u;  // bit 4 w for word w
  const auto gather = [](uint32_t four) { return ((four & 0x1111u) * 0x1248u >> 12) & 15u; };
  return static_cast<uint8_t>(gather(whole) | gather(whole >> 16) << 4);
}

}  // namespace

GlobalShadow::GlobalShadow(LaunchShadow& launch, const Memory& memory, uint64_t blocks) : launch_(launch) {
  sectors_.resize(memory.segments().size());
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

uint32_t GlobalShadow::Touch(Warp& warp, int segment, const Request& request, const SectorList& list) {
  LaunchShadow::Shadow& shadow = launch_.At(segment);
  std::vector<Sector>& sectors = sectors_[static_cast<size_t>(segment)];
  if (sectors.empty()) sectors.resize(shadow.sectors);
  const uint64_t first = shadow.base >> 5;
  const uint32_t tag = static_cast<uint32_t>(block_) + 1;
  const bool is_store = request.access != Access::kLoad;
  const bool record = launch_.races_ && request.access != Access::kAtomic;
  uint32_t covered[kWarpSize];
  if (record && request.bytes < 4) CoveredBytes(request, list, covered);
  uint32_t fresh = 0;
  for (uint32_t i = 0; i < list.count; ++i) {
    const uint64_t at = list.sector[i] - first;
    Sector& sector = sectors[at];
    if (sector.block != tag) sector = {tag, 0, 0, 0};
    const uint8_t kind = is_store ? 2 : 1;
    if ((sector.touched & kind) == 0) {
      ++fresh;
      sector.touched |= kind;
      const uint8_t bits = request.access == Access::kAtomic ? 3 : kind;
      std::atomic<uint8_t>& touched = shadow.touched[at];
      if ((touched.load(std::memory_order_relaxed) & bits) != bits)
        touched.fetch_or(bits, std::memory_order_relaxed);
    }
    if (!record) continue;
    uint8_t& have = is_store ? sector.stored : sector.loaded;
    const uint8_t words = request.bytes < 4 ? WholeWords(covered[i]) : list.words[i];
    if (const uint8_t news = static_cast<uint8_t>(words & ~have); news != 0) {
      have |= words;
      Record(warp, shadow, request, at, news);
    }
    if (words == list.words[i]) continue;
    uint32_t rest = covered[i];
    for (uint32_t w = 0; w < 8; ++w) {
      if (have >> w & 1) rest &= ~(15u << (4 * w));
    }
    if (rest != 0) RecordBytes(warp, shadow, request, at, rest);
  }
  return fresh;
}

// The lane that accesses a byte.
int GlobalShadow::LaneOf(const Request& request, uint64_t address) {
  for (int i = 0; i < kWarpSize; ++i) {
    const int lane = (lane_hint_ + i) % kWarpSize;
    if ((request.mask >> lane & 1) && address - request.lanes.address[lane] < request.bytes) {
      lane_hint_ = lane;
      return lane;
    }
  }
  return 0;
}

LaunchShadow::Stamp GlobalShadow::StampOf(const Warp& warp, int lane) const {
  return (block_ + 1) << LaunchShadow::kBlockShift | uint64_t{warp.pc} << LaunchShadow::kThreadBits |
         (warp.id * uint64_t{kWarpSize} + static_cast<uint64_t>(lane));
}

void GlobalShadow::Record(Warp& warp, LaunchShadow::Shadow& shadow, const Request& request, uint64_t sector,
                          uint8_t words) {
  const bool is_store = request.access == Access::kStore;
  if (!is_store && words == 0xff && !launch_.ordered_) {
    // The lane is that of the first word.
    shadow.sector_reads.get()[sector].Add(StampOf(warp, LaneOf(request, shadow.base + sector * 32)));
    return;
  }
  for (uint32_t mask = words; mask != 0; mask &= mask - 1) {
    const uint64_t word = sector * 8 + static_cast<uint64_t>(std::countr_zero(mask));
    const int lane = LaneOf(request, shadow.base + word * 4);
    if (launch_.ordered_) JudgeNow(warp, lane, shadow, word, LaunchShadow::kWholeWord, is_store);
    LaunchShadow::Accesses& accesses = shadow.words.get()[word];
    (is_store ? accesses.writes : accesses.reads).Add(StampOf(warp, lane));
  }
}

void GlobalShadow::RecordBytes(Warp& warp, LaunchShadow::Shadow& shadow, const Request& request,
                               uint64_t sector, uint32_t bytes) {
  const bool is_store = request.access == Access::kStore;
  int judged = -1;
  for (; bytes != 0; bytes &= bytes - 1) {
    const uint64_t offset = sector * 32 + static_cast<uint64_t>(std::countr_zero(bytes));
    const int lane = LaneOf(request, shadow.base + offset);
    if (launch_.ordered_ && lane != judged) {
      const uint32_t of_lane = ((1u << request.bytes) - 1) << (request.lanes.address[lane] & 3);
      JudgeNow(warp, lane, shadow, offset / 4, static_cast<uint8_t>(of_lane), is_store);
      judged = lane;
    }
    LaunchShadow::Accesses& accesses = shadow.Byte(offset);
    (is_store ? accesses.writes : accesses.reads).Add(StampOf(warp, lane));
  }
}

bool GlobalShadow::Ordered(LaunchShadow::Stamp other) const {
  const uint64_t block = (other >> LaunchShadow::kBlockShift) - 1;
  return block == block_ || visible_[block];
}

void GlobalShadow::JudgeNow(Warp& warp, int lane, const LaunchShadow::Shadow& shadow, uint64_t word,
                            uint8_t bytes, bool is_store) {
  if (shadow.touched[word / 8].load(std::memory_order_relaxed) < 2) return;  // nobody stored here
  const LaunchShadow::History history = LaunchShadow::Look(shadow, word, bytes);
  const uint64_t address = shadow.base + word * 4 + static_cast<uint64_t>(std::countr_zero(bytes));
  if (history.last_write != 0 && !Ordered(history.last_write)) {
    warp.block->Report(HazardKind::kGlobalRace, warp, lane, address,
                       is_store ? "written by another block too" : "written by another block",
                       LaunchShadow::SiteOf(history.last_write));
  } else if (is_store && history.last_read != 0 && !Ordered(history.last_read)) {
    warp.block->Report(HazardKind::kGlobalRace, warp, lane, address, "read by another block",
                       LaunchShadow::SiteOf(history.last_read));
  }
}

}  // namespace vqllm::ptx
