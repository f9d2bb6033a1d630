#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace vqllm::ptx {

struct Program;

/// One allocation.
struct Segment {
  uint64_t base = 0;  ///< device address, a multiple of 512
  uint64_t size = 0;
  std::string name;
  std::unique_ptr<uint8_t[]> storage;
  uint8_t* host = nullptr;        ///< of the first byte, 64-byte aligned
  std::vector<uint64_t> written;  ///< one bit a byte: it has a value
};

/// Device memory of the interpreter: allocations with gaps around them, so that an index that runs out of
/// one never falls into another. Fresh memory holds 0xff bytes (NaN as floats) and counts as uninitialised.
/// Addresses are not used twice. Not to be changed while a launch runs.
class Memory {
 public:
  /// Allocations may take `limit` bytes in all.
  explicit Memory(uint64_t limit = uint64_t{1} << 36) : limit_(limit) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// `name` is what hazards call it. Zero bytes are allowed: any access to them is out of bounds. Throws
  /// Error above the limit.
  uint64_t Allocate(uint64_t bytes, std::string name = "");
  /// Throws Error unless `address` came from Allocate.
  void Free(uint64_t address);
  /// Copies and fills; the whole range must lie in one allocation, else Error.
  void CopyIn(uint64_t address, const void* data, uint64_t bytes);
  void CopyOut(void* data, uint64_t address, uint64_t bytes) const;
  void Fill(uint64_t address, uint8_t value, uint64_t bytes);

  uint64_t allocated_bytes() const { return allocated_; }

  /// What a module has in this memory: the addresses of its .global variables and its constant bank.
  struct Instance {
    std::shared_ptr<const Program> program;
    std::vector<uint64_t> addresses;  ///< of each variable of the program, 0 where it is not .global
    std::vector<uint8_t> const_bank;
  };
  Instance& InstanceOf(const std::shared_ptr<const Program>& program);

  const std::vector<std::unique_ptr<Segment>>& segments() const { return segments_; }
  /// The last segment that begins at or before the address; -1 for none.
  int Find(uint64_t address) const;
  /// Marks bytes of a segment as written.
  static void MarkWritten(Segment& segment, uint64_t offset, uint64_t bytes);

 private:
  const Segment& Range(uint64_t address, uint64_t bytes, std::string_view what) const;

  uint64_t limit_;
  uint64_t allocated_ = 0;
  uint64_t next_ = uint64_t{0x7f} << 40;
  std::vector<std::unique_ptr<Segment>> segments_;  // by address
  std::vector<std::unique_ptr<Instance>> instances_;
};

}  // namespace vqllm::ptx
