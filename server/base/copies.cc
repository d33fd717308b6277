#include "server/base/copies.h"

#include "absl/strings/str_cat.h"

namespace edgewise::server {

absl::Status HoldCopies(uint64_t bytes, uint64_t more, uint64_t message_limit, MemoryHold& hold) {
  if (bytes > message_limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the inputs take ", bytes, " bytes, what they share counted in each; the server takes at most ",
                     message_limit));
  }
  return hold.Resize(hold.bytes() + bytes + more);
}

}  // namespace edgewise::server
