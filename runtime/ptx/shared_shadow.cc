#include "runtime/ptx/shared_shadow.h"

#include <algorithm>

#include "runtime/ptx/warp.h"

namespace vqllm::ptx {
namespace {

// The bytes of a word that an access of up to four bytes touches.
inline uint8_t ByteMask(uint32_t address, uint32_t bytes) {
  return static_cast<uint8_t>(((1u << std::min(bytes, 4u)) - 1) << (address & 3));
}

inline uint16_t ThreadOf(const Warp& warp, int lane) {
  return static_cast<uint16_t>(warp.id * kWarpSize + static_cast<uint32_t>(lane));
}

AccessSite SiteOf(const Warp& warp, uint32_t pc, uint16_t thread) {
  return {pc, warp.block->index, thread / uint32_t{kWarpSize}, thread % kWarpSize};
}

}  // namespace

void SharedShadow::Resize(uint32_t bytes) {
  const size_t words = bytes / 4 + 8;
  words_.resize(words);
  quiet_.resize(words);
  initialised_.resize(words);
  pending_.resize(words);
  copies_.resize(words);
}

void SharedShadow::BeginBlock() {
  std::ranges::fill(initialised_, uint8_t{0});
  std::ranges::fill(pending_, uint8_t{0});
  if (++epoch_ < 0xf0000000u) return;
  // Before the epochs run out, all that is known is forgotten.
  words_.assign(words_.size(), Word{});
  quiet_.assign(quiet_.size(), 0);
  epoch_ = 1;
}

void SharedShadow::Split(uint32_t word) {
  if (bytes_.empty()) bytes_.resize(words_.size() * 4);
  std::fill_n(bytes_.begin() + 4 * static_cast<ptrdiff_t>(word), 4, words_[word].cell);
  words_[word].split_epoch = epoch_;
  quiet_[word] = 0;
}

// The cell of the word, or those of the bytes of the mask where the word is or becomes known in parts.
template <typename Body>
void SharedShadow::ForCells(uint32_t word, uint8_t mask, Body&& body) {
  if (words_[word].split_epoch != epoch_) {
    if (mask == 15) return body(words_[word].cell);
    Split(word);
  }
  for (uint32_t byte = 0; byte < 4; ++byte) {
    if (mask >> byte & 1) body(bytes_[word * 4 + byte]);
  }
}

bool SharedShadow::RacesWithWrite(Warp& warp, const Cell& cell, int lane, uint32_t address,
                                  bool is_read) const {
  const AccessSite other = SiteOf(warp, cell.write_pc, cell.write_thread);
  if (other.warp != warp.id) {
    warp.block->Report(HazardKind::kSharedRace, warp, lane, address,
                       is_read ? "read of what another warp wrote since the last barrier"
                               : "another warp wrote since the last barrier",
                       other);
    return true;
  }
  if (cell.write_step != warp.sync_step) return false;
  warp.block->Report(HazardKind::kMissingSyncwarp, warp, lane, address,
                     is_read ? "read of what another lane wrote" : "another lane wrote", other);
  return true;
}

bool SharedShadow::RacesWithReads(Warp& warp, const Cell& cell, int lane, uint32_t address) const {
  const AccessSite first = SiteOf(warp, cell.read_pc, cell.read_thread);
  const AccessSite second = SiteOf(warp, cell.second_pc, cell.second_thread);
  if (first.warp != warp.id || cell.several_warps) {
    warp.block->Report(HazardKind::kSharedRace, warp, lane, address,
                       "another warp read since the last barrier", first.warp != warp.id ? first : second);
    return true;
  }
  const bool first_is_other = cell.read_thread != ThreadOf(warp, lane);
  if (cell.read_step != warp.sync_step || (!first_is_other && cell.second_thread == kNobody)) return false;
  warp.block->Report(HazardKind::kMissingSyncwarp, warp, lane, address, "another lane read",
                     first_is_other ? first : second);
  return true;
}

inline void SharedShadow::NoteRead(const Warp& warp, Cell& cell, uint16_t thread) const {
  if (cell.read_epoch == epoch_ && cell.several_warps) return;
  const bool same_warp = cell.read_thread / kWarpSize == warp.id;
  if (cell.read_epoch != epoch_ || (same_warp && cell.read_step != warp.sync_step)) {
    cell.read_epoch = epoch_;
    cell.read_step = warp.sync_step;
    cell.read_thread = thread;
    cell.read_pc = warp.pc;
    cell.second_thread = kNobody;
    cell.several_warps = false;
  } else if (!same_warp || (cell.read_thread != thread && cell.second_thread == kNobody)) {
    cell.second_thread = thread;
    cell.second_pc = warp.pc;
    cell.several_warps = !same_warp;
  }
}

inline void SharedShadow::NoteWrite(const Warp& warp, Cell& cell, uint16_t thread, bool atomic) const {
  cell.write_epoch = epoch_;
  cell.write_step = warp.sync_step;
  cell.write_thread = thread;
  cell.write_pc = warp.pc;
  cell.atomic = atomic;
}

void SharedShadow::ReportPending(Warp& warp, uint32_t word, int lane, uint32_t address, const char* what) {
  warp.block->Report(HazardKind::kPendingCopy, warp, lane, address, what,
                     SiteOf(warp, copies_[word].pc, copies_[word].thread));
}

inline void SharedShadow::CheckValue(Warp& warp, uint32_t word, uint8_t mask, int lane, uint32_t address,
                                     const char* what) {
  if (pending_[word] & mask) {
    ReportPending(warp, word, lane, address, what);
  } else if ((initialised_[word] & mask) != mask) {
    warp.block->Report(HazardKind::kUninitialisedShared, warp, lane, address, what);
  }
}

void SharedShadow::ReadWords(Warp& warp, int lane, uint32_t address, uint32_t bytes) {
  const uint16_t thread = ThreadOf(warp, lane);
  const uint8_t mask = ByteMask(address, bytes);
  for (uint32_t done = 0; done < bytes; done += 4) {
    const uint32_t word = (address + done) >> 2;
    CheckValue(warp, word, mask, lane, address + done, "");
    bool reported = false;
    ForCells(word, mask, [&](Cell& cell) {
      if (!reported && cell.write_epoch == epoch_ && cell.write_thread != thread) [[unlikely]] {
        reported = RacesWithWrite(warp, cell, lane, address + done, true);
      }
      NoteRead(warp, cell, thread);
    });
    const Word& now = words_[word];
    if (now.cell.several_warps && now.split_epoch != epoch_ && now.cell.write_epoch != epoch_ &&
        initialised_[word] == 15 && pending_[word] == 0) {
      quiet_[word] = epoch_;
    }
  }
}

void SharedShadow::WriteWord(Warp& warp, uint32_t word, uint8_t mask, int lane, uint32_t address,
                             bool is_copy) {
  const uint16_t thread = ThreadOf(warp, lane);
  quiet_[word] = 0;
  if (pending_[word] & mask) ReportPending(warp, word, lane, address, is_copy ? "second copy" : "write");
  bool reported = false;
  ForCells(word, mask, [&](Cell& cell) {
    if (!reported && cell.write_epoch == epoch_ && cell.write_thread != thread) [[unlikely]] {
      reported = RacesWithWrite(warp, cell, lane, address, false);
    }
    if (!reported && cell.read_epoch == epoch_) [[unlikely]] {
      reported = RacesWithReads(warp, cell, lane, address);
    }
    NoteWrite(warp, cell, thread, false);
  });
  initialised_[word] |= mask;
}

void SharedShadow::Write(Warp& warp, int lane, uint32_t address, uint32_t bytes) {
  const uint8_t mask = ByteMask(address, bytes);
  for (uint32_t done = 0; done < bytes; done += 4) {
    WriteWord(warp, (address + done) >> 2, mask, lane, address + done, false);
  }
}

void SharedShadow::Atomic(Warp& warp, int lane, uint32_t address, uint32_t bytes) {
  const uint8_t mask = ByteMask(address, bytes);
  const uint16_t thread = ThreadOf(warp, lane);
  for (uint32_t done = 0; done < bytes; done += 4) {
    const uint32_t word = (address + done) >> 2;
    quiet_[word] = 0;
    CheckValue(warp, word, mask, lane, address + done, "atomic");
    bool reported = false;
    ForCells(word, mask, [&](Cell& cell) {
      // Atomics do not race with each other.
      if (!reported && cell.write_epoch == epoch_ && cell.write_thread != thread && !cell.atomic) {
        reported = RacesWithWrite(warp, cell, lane, address + done, true);
      }
      NoteWrite(warp, cell, thread, true);
    });
  }
}

void SharedShadow::BeginCopy(Warp& warp, int lane, uint32_t address, uint32_t bytes) {
  for (uint32_t done = 0; done < bytes; done += 4) {
    const uint32_t word = (address + done) >> 2;
    WriteWord(warp, word, 15, lane, address + done, true);
    pending_[word] = 15;
    copies_[word] = {warp.pc, ThreadOf(warp, lane)};
  }
}

void SharedShadow::EndCopy(Warp& warp, int lane, uint32_t address, uint32_t bytes) {
  for (uint32_t done = 0; done < bytes; done += 4) {
    const uint32_t word = (address + done) >> 2;
    quiet_[word] = 0;
    pending_[word] = 0;
    initialised_[word] = 15;
    ForCells(word, 15, [&](Cell& cell) { NoteWrite(warp, cell, ThreadOf(warp, lane), false); });
  }
}

}  // namespace vqllm::ptx
