#include "server/memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/cgroup.h"
#include "server/status_details.h"
#include "text/status_macros.h"

namespace edgewise::server {
namespace {

constexpr double kRetrySeconds = 1.0;

// A limit of a cgroup, in bytes; `otherwise` where the file has none.
uint64_t ReadLimit(const std::string& file, uint64_t otherwise) {
  std::ifstream stream(file);
  std::string text;
  uint64_t bytes;
  return stream >> text && absl::SimpleAtoi(text, &bytes) ? bytes : otherwise;
}

}  // namespace

absl::Status MemoryLedger::Reserve(uint64_t bytes) {
  const uint64_t limit = limit_.load();
  uint64_t used = used_.load();
  do {
    if (used > limit || bytes > limit - used) {
      absl::Status status = absl::ResourceExhaustedError(
          absl::StrCat("the call needs ", bytes, " bytes of memory; others hold ", used, " of the ", limit,
                       " bytes that the server has for calls (--max_memory)"));
      SetRetryDelay(status, kRetrySeconds);
      return WithRejection(std::move(status), Rejection::kOutOfMemory);
    }
  } while (!used_.compare_exchange_weak(used, used + bytes));
  return absl::OkStatus();
}

absl::Status MemoryHold::Resize(uint64_t bytes) {
  if (ledger_ && bytes > bytes_) {
    RETURN_IF_ERROR(ledger_->Reserve(bytes - bytes_));
    bytes_ = bytes;
  }
  Shrink(bytes);
  return absl::OkStatus();
}

void MemoryHold::Shrink(uint64_t bytes) {
  if (!ledger_ || bytes >= bytes_) return;
  ledger_->Release(bytes_ - bytes);
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
