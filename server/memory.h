// The bytes that calls hold: messages, checked requests, results, answers that are not sent yet. A call that would hold
// more than is left is refused.
#ifndef EDGEWISE_SERVER_MEMORY_H_
#define EDGEWISE_SERVER_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"

namespace edgewise::server {

// Counts bytes against a limit. Any thread; no lock.
class MemoryLedger {
 public:
  explicit MemoryLedger(uint64_t limit) : limit_(limit) {}
  MemoryLedger(const MemoryLedger&) = delete;
  MemoryLedger& operator=(const MemoryLedger&) = delete;

  // Takes the bytes iff OK. RESOURCE_EXHAUSTED with RetryInfo: more than is left.
  absl::Status Reserve(uint64_t bytes);
  void Release(uint64_t bytes) { used_.fetch_sub(bytes); }

  // What is held stays so under a smaller limit.
  void SetLimit(uint64_t limit) { limit_.store(limit); }
  uint64_t limit() const { return limit_.load(); }
  uint64_t used() const { return used_.load(); }

 private:
  std::atomic<uint64_t> limit_;
  std::atomic<uint64_t> used_ = 0;
};

// Bytes of a ledger, which are released when the hold ends. The ledger must outlive it. One thread at a time.
class MemoryHold {
 public:
  MemoryHold() = default;  // of no ledger: any size is OK
  explicit MemoryHold(MemoryLedger& ledger) : ledger_(&ledger) {}
  MemoryHold(MemoryHold&& other) noexcept
      : ledger_(std::exchange(other.ledger_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryHold& operator=(MemoryHold&& other) noexcept {
    std::swap(ledger_, other.ledger_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MemoryHold() { Shrink(0); }

  // Holds so many bytes in all. RESOURCE_EXHAUSTED: the ledger lacks them, and the hold is as it was.
  absl::Status Resize(uint64_t bytes);
  // Holds at most so many.
  void Shrink(uint64_t bytes);
  uint64_t bytes() const { return bytes_; }

 private:
  MemoryLedger* ledger_ = nullptr;
  uint64_t bytes_ = 0;
};

// The memory that this process may use: that of the machine, or less where a cgroup bounds it.
uint64_t AvailableMemory();

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_MEMORY_H_
