// The bytes that calls hold: messages, checked requests, results, answers that are not sent yet. A call that would hold
// more than is left is refused, and so is one of a principal that would hold more than its share.
#ifndef EDGEWISE_SERVER_BASE_MEMORY_H_
#define EDGEWISE_SERVER_BASE_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace edgewise::server {

class MemoryLedger;

// The bytes that all calls of one principal hold of a ledger. Any thread.
class MemoryAccount {
 public:
  uint64_t used() const { return used_.load(); }

 private:
  friend class MemoryHold;
  friend class MemoryLedger;
  explicit MemoryAccount(MemoryLedger& ledger) : ledger_(ledger) {}

  MemoryLedger& ledger_;
  std::atomic<uint64_t> used_ = 0;
};

// Counts bytes against a limit. A principal may hold three times what it leaves free: alone three quarters of the
// limit, and of two that take all they can, each three sevenths. So there is room for one that comes later. Any thread.
class MemoryLedger {
 public:
  explicit MemoryLedger(uint64_t limit) : limit_(limit) {}
  MemoryLedger(const MemoryLedger&) = delete;
  MemoryLedger& operator=(const MemoryLedger&) = delete;

  // That of the principal's calls. It ends with the last of them, which must be before the ledger.
  std::shared_ptr<MemoryAccount> AccountOf(const std::string& principal);

  // Takes the bytes iff OK, for nobody or for a principal. RESOURCE_EXHAUSTED with RetryInfo: more than is left, or
  // than the principal may hold.
  absl::Status Reserve(uint64_t bytes, MemoryAccount* account = nullptr);
  void Release(uint64_t bytes, MemoryAccount* account = nullptr);

  // The equal part of each principal that had calls when one was last refused that would not have held more; since the
  // last call. 0: none was.
  uint64_t TakeWanting() { return wanting_.exchange(0); }

  // Bytes that are held already stay held under a smaller limit.
  void SetLimit(uint64_t limit) { limit_.store(limit); }
  uint64_t limit() const { return limit_.load(); }
  uint64_t used() const { return used_.load(); }

 private:
  absl::Status Refuse(uint64_t bytes, const MemoryAccount* account, uint64_t has, uint64_t used);

  std::atomic<uint64_t> limit_;
  std::atomic<uint64_t> used_ = 0;
  std::atomic<uint64_t> wanting_ = 0;
  absl::Mutex mutex_;
  std::map<std::string, std::weak_ptr<MemoryAccount>> accounts_ ABSL_GUARDED_BY(mutex_);
};

// Bytes of a ledger, which are released when the hold ends. The ledger, or the account, must outlive it. One thread at
// a time.
class MemoryHold {
 public:
  MemoryHold() = default;  // of no ledger: any size is OK
  explicit MemoryHold(MemoryLedger& ledger) : ledger_(&ledger) {}
  explicit MemoryHold(MemoryAccount& account) : ledger_(&account.ledger_), account_(&account) {}
  MemoryHold(MemoryHold&& other) noexcept
      : ledger_(std::exchange(other.ledger_, nullptr)),
        account_(std::exchange(other.account_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryHold& operator=(MemoryHold&& other) noexcept {
    std::swap(ledger_, other.ledger_);
    std::swap(account_, other.account_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MemoryHold() { Shrink(0); }

  // Changes the hold to `bytes`. RESOURCE_EXHAUSTED: the ledger lacks them, and the hold is as it was.
  absl::Status Resize(uint64_t bytes);
  // Lowers the hold to at most `bytes`.
  void Shrink(uint64_t bytes);
  uint64_t bytes() const { return bytes_; }

 private:
  MemoryLedger* ledger_ = nullptr;
  MemoryAccount* account_ = nullptr;
  uint64_t bytes_ = 0;
};

// The memory that this process may use: that of the machine, or less where a cgroup bounds it.
uint64_t AvailableMemory();

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_BASE_MEMORY_H_
