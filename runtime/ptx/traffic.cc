#include "runtime/ptx/traffic.h"

#include <algorithm>
#include <bit>

namespace vqllm::ptx {
namespace {

// The most distinct units that fall into one of `banks` banks, among the lanes of the mask.
uint32_t MostInOneBank(const uint32_t* address, uint32_t mask, int shift, uint32_t banks) {
  // Of each bank: its units as a chain of lanes. Every unit is looked up along one chain only.
  int8_t head[32];
  int8_t next[kWarpSize];
  uint8_t length[32] = {};
  std::fill_n(head, banks, int8_t{-1});
  uint32_t most = 0;
  for (; mask != 0; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    const uint32_t unit = address[lane] >> shift;
    const uint32_t bank = unit & (banks - 1);
    int8_t at = head[bank];
    while (at >= 0 && address[at] >> shift != unit) at = next[at];
    if (at >= 0) continue;
    next[lane] = head[bank];
    head[bank] = static_cast<int8_t>(lane);
    most = std::max<uint32_t>(most, ++length[bank]);
  }
  return most;
}

}  // namespace

Wavefronts CountWavefronts(const uint32_t* address, uint32_t mask, uint32_t bytes) {
  Wavefronts result;
  if (mask == 0) return result;
  if (bytes <= 4) {
    result.ideal = 1;
    result.actual = MostInOneBank(address, mask, 2, 32);
    return result;
  }
  // 32 lanes of 4 bytes, 16 of 8, 8 of 16, 4 of 32 fill the banks once.
  const int lanes = static_cast<int>(128 / bytes);
  const int shift = std::countr_zero(bytes);
  for (int first = 0; first < kWarpSize; first += lanes) {
    const uint32_t part = mask & (((uint64_t{1} << lanes) - 1) << first);
    if (part == 0) continue;
    ++result.ideal;
    result.actual += MostInOneBank(address, part, shift, static_cast<uint32_t>(lanes));
  }
  return result;
}

uint32_t CountAtomicWavefronts(const uint32_t* address, uint32_t mask, uint32_t bytes) {
  uint32_t length[32] = {};
  uint32_t most = 0;
  const uint32_t words = std::max<uint32_t>(1, bytes / 4);
  for (; mask != 0; mask &= mask - 1) {
    const uint32_t bank = (address[std::countr_zero(mask)] >> 2) & 31;
    length[bank] += words;
    most = std::max(most, length[bank]);
  }
  return most;
}

void ListSectors(const uint64_t* address, uint32_t mask, uint32_t bytes, SectorList& list) {
  list.count = 0;
  bool ascending = true;
  const uint32_t run = bytes >= 4 ? (1u << (bytes / 4)) - 1 : 1u;
  for (; mask != 0; mask &= mask - 1) {
    const uint64_t a = address[std::countr_zero(mask)];
    const uint64_t sector = a >> 5;
    const uint8_t words = static_cast<uint8_t>(run << (a >> 2 & 7));
    if (list.count != 0 && list.sector[list.count - 1] == sector) {
      list.words[list.count - 1] |= words;
      continue;
    }
    if (list.count != 0 && list.sector[list.count - 1] > sector) ascending = false;
    list.sector[list.count] = sector;
    list.words[list.count] = words;
    ++list.count;
  }
  if (ascending) return;
  // Merge sectors that came back. 64 places for 32 keys: chains stay short.
  constexpr uint8_t kFree = 0xff;
  uint8_t table[64];
  std::fill_n(table, 64, kFree);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < list.count; ++i) {
    const uint64_t sector = list.sector[i];
    uint32_t place = static_cast<uint32_t>(sector * 0x9e3779b97f4a7c15ull >> 58);
    while (table[place] != kFree && list.sector[table[place]] != sector) place = (place + 1) & 63;
    if (table[place] != kFree) {
      list.words[table[place]] |= list.words[i];
      continue;
    }
    table[place] = static_cast<uint8_t>(kept);
    list.sector[kept] = sector;
    list.words[kept] = list.words[i];
    ++kept;
  }
  list.count = kept;
}

}  // namespace vqllm::ptx
