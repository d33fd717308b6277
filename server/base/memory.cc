#include "server/base/memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/cgroup.h"
#include "base/status_macros.h"
#include "server/base/status_details.h"

namespace edgewise::server {
namespace {

constexpr double kRetrySeconds = 1.0;
constexpr uint64_t kShareOfFree = 3;  // a principal may hold this many times what it leaves free

// A limit of a cgroup, in bytes; `otherwise` where the file has none.
uint64_t ReadLimit(const std::string& file, uint64_t otherwise) {
  std::ifstream stream(file);
  std::string text;
  uint64_t bytes;
  return stream >> text && absl::SimpleAtoi(text, &bytes) ? bytes : otherwise;
}

}  // namespace

std::shared_ptr<MemoryAccount> MemoryLedger::AccountOf(const std::string& principal) {
  const absl::MutexLock lock(&mutex_);
  std::weak_ptr<MemoryAccount>& known = accounts_[principal];
  std::shared_ptr<MemoryAccount> account = known.lock();
  if (account) return account;
  account.reset(new MemoryAccount(*this), [this, principal](MemoryAccount* ended) {
    delete ended;
    const absl::MutexLock again(&mutex_);
    const auto place = accounts_.find(principal);
    if (place != accounts_.end() && place->second.expired()) accounts_.erase(place);
  });
  known = account;
  return account;
}

absl::Status MemoryLedger::Reserve(uint64_t bytes, MemoryAccount* account) {
  const uint64_t limit = limit_.load();
  // Counted first, so that calls of one principal on several threads do not pass its share together.
  if (account != nullptr) account->used_.fetch_add(bytes);
  uint64_t used = used_.load();
  do {
    const uint64_t left = limit - std::min(limit, used), has = account == nullptr ? 0 : account->used_.load();
    if (bytes <= left && has <= kShareOfFree * (left - bytes)) continue;
    if (account != nullptr) account->used_.fetch_sub(bytes);
    return Refuse(bytes, account, has - std::min(has, bytes), used);
  } while (!used_.compare_exchange_weak(used, used + bytes));
  return absl::OkStatus();
}

void MemoryLedger::Release(uint64_t bytes, MemoryAccount* account) {
  used_.fetch_sub(bytes);
  if (account != nullptr) account->used_.fetch_sub(bytes);
}

absl::Status MemoryLedger::Refuse(uint64_t bytes, const MemoryAccount* account, uint64_t has, uint64_t used) {
  if (account != nullptr) {
    const absl::MutexLock lock(&mutex_);
    const uint64_t part = limit_.load() / accounts_.size();
    if (bytes <= part && has <= part - bytes) wanting_ = part;
  }
  std::string message =
      absl::StrCat("the call needs ", bytes, " bytes of memory; others hold ", used - std::min(has, used), " of the ",
                   limit_.load(), " bytes that the server has for calls (--max_memory)");
  if (account != nullptr) {
    absl::StrAppend(&message, ", and calls of this client ", has, "; they may hold at most ", kShareOfFree,
                    " times what stays free");
  }
  absl::Status status = absl::ResourceExhaustedError(message);
  SetRetryDelay(status, kRetrySeconds);
  return WithRejection(std::move(status), Rejection::kOutOfMemory);
}

absl::Status MemoryHold::Resize(uint64_t bytes) {
  if (ledger_ && bytes > bytes_) {
    RETURN_IF_ERROR(ledger_->Reserve(bytes - bytes_, account_));
    bytes_ = bytes;
  }
  Shrink(bytes);
  return absl::OkStatus();
}

void MemoryHold::Shrink(uint64_t bytes) {
  if (!ledger_ || bytes >= bytes_) return;
  ledger_->Release(bytes_ - bytes, account_);
  bytes_ = bytes;
}

uint64_t AvailableMemory() {
  uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (const Cgroup& group : CgroupsOf("memory")) {
    bytes =
        std::min(bytes, ReadLimit(group.folder + (group.unified ? "/memory.max" : "/memory.limit_in_bytes"), bytes));
  }
  return bytes;
}

}  // namespace edgewise::server
