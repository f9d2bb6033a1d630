#include <algorithm>

#include "runtime/ptx/access.h"
#include "runtime/ptx/exec.h"

namespace vqllm::ptx {
namespace {

// Sources: shared address, global address, [bytes to read | predicate that drops the source]; the immediate
// is the size. The bytes move at the wait.
void Copy(Warp& warp, const Instruction& instruction) {
  const uint32_t bytes = instruction.immediate;
  Block& block = *warp.block;
  Lanes32 to;
  Lanes32 from;
  LaneAddresses(warp, instruction.source[0], instruction.wide_address, instruction.offset, to.address);
  LaneAddresses(warp, instruction.source[1], instruction.wide_address2, instruction.offset2, from.address);
  uint32_t read[kWarpSize];
  uint32_t reading = 0;
  const Place third = instruction.source[2];
  ForLanes(warp.mask, [&](int i) {
    read[i] = bytes;
    if (third != kNowhere) {
      if (instruction.is_signed) {  // a predicate: ignore the source
        const bool ignore = (warp.Predicate(third) >> i & 1) != (instruction.negate >> 2 & 1u);
        read[i] = ignore ? 0 : bytes;
      } else {
        read[i] = std::min(bytes, warp.Read<uint32_t>(third)[i]);
      }
    }
    reading |= read[i] != 0 ? 1u << i : 0u;
  });
  const uint32_t stored = ResolveShared(warp, to, warp.mask, bytes);
  int segment = -1;
  const uint32_t loaded =
      (reading & stored) != 0 ? ResolveGlobal(warp, from, reading & stored, bytes, &segment) : 0;
  NoteGlobal(warp, from, loaded, bytes, segment, AccessKind::kCopy);
  if (loaded == 0 && block.count) ++block.counters[Counter::kAsyncCopyRequests];
  NoteShared(warp, to, stored, bytes, AccessKind::kCopy);
  ForLanes(stored, [&](int i) {
    const bool has_source = loaded >> i & 1;
    warp.copies.push_back({i, static_cast<uint32_t>(to.address[i]), has_source ? from.host[i] : nullptr,
                           bytes, has_source ? read[i] : 0, warp.copy_group[i]});
  });
}

void Commit(Warp& warp, const Instruction&) {
  ForLanes(warp.mask, [&](int i) { ++warp.copy_group[i]; });
}

// Finishes the copies of these lanes but for the last `keep` groups; all of them, also those without a group,
// where `everything`.
void Finish(Warp& warp, uint32_t keep, bool everything) {
  Block& block = *warp.block;
  size_t left = 0;
  for (size_t c = 0; c < warp.copies.size(); ++c) {
    const PendingCopy copy = warp.copies[c];
    const uint32_t committed = warp.copy_group[copy.lane];
    const bool due = everything || (copy.group < committed && committed - copy.group > keep);
    if (!(warp.mask >> copy.lane & 1) || !due) {
      warp.copies[left++] = copy;
      continue;
    }
    if (copy.source_bytes != 0) std::memcpy(block.shared + copy.dest, copy.source, copy.source_bytes);
    std::memset(block.shared + copy.dest + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
    if (block.check) block.shadow.EndCopy(warp, copy.lane, copy.dest, copy.bytes);
  }
  warp.copies.resize(left);
}

void WaitGroup(Warp& warp, const Instruction& instruction) { Finish(warp, instruction.immediate, false); }
void WaitAll(Warp& warp, const Instruction&) { Finish(warp, 0, true); }

}  // namespace

Handler SelectAsyncCopy(const Opcode& o) {
  if (o.Has("commit_group")) return Commit;
  if (o.Has("wait_group")) return WaitGroup;
  if (o.Has("wait_all")) return WaitAll;
  return Copy;
}

}  // namespace vqllm::ptx
