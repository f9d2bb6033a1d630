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

}  // namespace

void SharedShadow::CheckReadAfterWrite(Warp& warp, const Word& word, uint8_t mask, int lane, uint32_t address,
                                       uint16_t thread) const {
  if (word.write_epoch != epoch_ || word.write_thread == thread || (word.write_mask & mask) == 0) return;
  if (word.write_thread / kWarpSize != warp.id) {
    warp.block->Report(HazardKind::kSharedRace, warp, lane, address,
                       "read of what another warp wrote since the last barrier");
  } else if (word.write_step == warp.sync_step) {
    warp.block->Report(HazardKind::kMissingSyncwarp, warp, lane, address, "read of what another lane wrote");
  }
}

void SharedShadow::Read(Warp& warp, int lane, uint32_t address, uint32_t bytes) {
  uint32_t* quiet = &quiet_[address >> 2];
  uint32_t differs = *quiet ^ epoch_;
  for (uint32_t w = 1; w < bytes / 4; ++w) differs |= quiet[w] ^ epoch_;
  if (differs == 0) return;
  const uint16_t thread = ThreadOf(warp, lane);
  const uint8_t mask = ByteMask(address, bytes);
  Word* word = &words_[address >> 2];
  for (uint32_t done = 0; done < bytes; done += 4, ++word, ++quiet) {
    if (word->pending & mask) {
      warp.block->Report(HazardKind::kPendingCopy, warp, lane, address + done, "");
    } else if ((word->initialised & mask) != mask) {
      warp.block->Report(HazardKind::kUninitialisedShared, warp, lane, address + done, "");
    }
    CheckReadAfterWrite(warp, *word, mask, lane, address + done, thread);
    if (word->read_epoch != epoch_) {
      word->read_epoch = epoch_;
      word->read_thread = thread;
      word->read_warp = static_cast<uint16_t>(warp.id);
      word->read_mask = mask;
    } else {
      if (word->read_thread != thread) word->read_thread = kMany;
      if (word->read_warp != warp.id) word->read_warp = kMany;
      word->read_mask |= mask;
    }
    word->read_step = warp.sync_step;
    if (word->read_warp == kMany && word->write_epoch != epoch_ && word->initialised == 15 &&
        word->pending == 0 && word->read_mask == 15) {
      *quiet = epoch_;
    }
  }
}

void SharedShadow::WriteWord(Warp& warp, Word& word, uint8_t mask, int lane, uint32_t address, bool is_copy) {
  const uint16_t thread = ThreadOf(warp, lane);
  Block& block = *warp.block;
  if (word.pending & mask) {
    block.Report(HazardKind::kPendingCopy, warp, lane, address, is_copy ? "second copy" : "write");
  }
  if (word.write_epoch == epoch_ && word.write_thread != thread && (word.write_mask & mask)) {
    if (word.write_thread / kWarpSize != warp.id) {
      block.Report(HazardKind::kSharedRace, warp, lane, address, "another warp wrote since the last barrier");
    } else if (word.write_step == warp.sync_step) {
      block.Report(HazardKind::kMissingSyncwarp, warp, lane, address, "another lane wrote");
    }
  }
  if (word.read_epoch == epoch_ && word.read_thread != thread && (word.read_mask & mask)) {
    if (word.read_warp != warp.id) {
      block.Report(HazardKind::kSharedRace, warp, lane, address, "another warp read since the last barrier");
    } else if (word.read_step == warp.sync_step) {
      block.Report(HazardKind::kMissingSyncwarp, warp, lane, address, "another lane read");
    }
  }
  if (word.write_epoch != epoch_ || word.write_thread != thread) word.write_mask = 0;
  word.write_epoch = epoch_;
  word.write_thread = thread;
  word.write_step = warp.sync_step;
  word.write_mask |= mask;
  word.initialised |= mask;
  word.atomic = false;
}

void SharedShadow::Write(Warp& warp, int lane, uint32_t address, uint32_t bytes) {
  const uint8_t mask = ByteMask(address, bytes);
  for (uint32_t done = 0; done < bytes; done += 4) {
    quiet_[(address + done) >> 2] = 0;
    WriteWord(warp, words_[(address + done) >> 2], mask, lane, address + done, false);
  }
}

void SharedShadow::Atomic(Warp& warp, int lane, uint32_t address, uint32_t bytes) {
  const uint8_t mask = ByteMask(address, bytes);
  for (uint32_t done = 0; done < bytes; done += 4) {
    Word& word = words_[(address + done) >> 2];
    quiet_[(address + done) >> 2] = 0;
    if (word.pending & mask) {
      warp.block->Report(HazardKind::kPendingCopy, warp, lane, address + done, "atomic");
    } else if ((word.initialised & mask) != mask) {
      warp.block->Report(HazardKind::kUninitialisedShared, warp, lane, address + done, "atomic");
    }
    // Atomics do not race with each other.
    if (!(word.atomic && word.write_epoch == epoch_)) {
      CheckReadAfterWrite(warp, word, mask, lane, address + done, ThreadOf(warp, lane));
    }
    word.write_epoch = epoch_;
    word.write_thread = ThreadOf(warp, lane);
    word.write_step = warp.sync_step;
    word.write_mask = mask;
    word.atomic = true;
  }
}

void SharedShadow::BeginCopy(Warp& warp, int lane, uint32_t address, uint32_t bytes) {
  for (uint32_t done = 0; done < bytes; done += 4) {
    Word& word = words_[(address + done) >> 2];
    quiet_[(address + done) >> 2] = 0;
    WriteWord(warp, word, 15, lane, address + done, true);
    word.pending = 15;
  }
}

void SharedShadow::EndCopy(Warp& warp, int lane, uint32_t address, uint32_t bytes) {
  for (uint32_t done = 0; done < bytes; done += 4) {
    Word& word = words_[(address + done) >> 2];
    quiet_[(address + done) >> 2] = 0;
    word.pending = 0;
    word.initialised = 15;
    word.write_epoch = epoch_;
    word.write_thread = ThreadOf(warp, lane);
    word.write_step = warp.sync_step;
    word.write_mask = 15;
  }
}

}  // namespace vqllm::ptx
