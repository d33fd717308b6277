// How long bytes wait in a socket before gRPC reads them. The deadline of a call is sent as a duration and begins when
// the call is read, so that this wait does not show anywhere else.
#ifndef EDGEWISE_SERVER_GUARD_UNREAD_AGE_H_
#define EDGEWISE_SERVER_GUARD_UNREAD_AGE_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "server/request/request.h"

namespace edgewise::server {

// Measures the age of the oldest unread byte of one connection. One thread at a time.
class UnreadAge {
 public:
  // `received` bytes have come so far, and `unread` of them are not read. Returns the age of the oldest unread byte: at
  // most 1/16 too long, or too long by the time between two calls; 0 where none was unread at the last call.
  Clock::duration Observe(Time now, uint64_t received, uint64_t unread);
  // The last call saw nothing unread.
  bool idle() const { return marks_.empty(); }

 private:
  struct Mark {
    Time time;
    uint64_t received = 0;  // until then
  };
  // Marks newer than the oldest unread byte, and the last one before it. They are spaced by 1/16 of its age, so there
  // are about 16 ln(age).
  std::vector<Mark> marks_;
};

// Decides the remedy where calls are lost because they are read late: they have waited too long, or their clients gave
// them up before the server began them. gRPC parses all that it reads, so a late call costs the reading thread as much
// as one that is answered. The remedy ends connections, with the bytes that wait in them unread, until the others can
// be read in time. Then it accepts few connections at a time until they can be read too. One thread at a time; a look
// each 100 ms.
class LostCalls {
 public:
  static constexpr int kAnyNumber = std::numeric_limits<int>::max();
  struct Remedy {
    double drop = 0.0;        // this part of the bytes that are not read
    int accept = kAnyNumber;  // connections until the next look
  };
  // The first three count calls so far: those that came, began, and were refused because they were late. `late`: bytes
  // have waited for long.
  Remedy Look(uint64_t come, uint64_t begun, uint64_t refused, bool late);

 private:
  static constexpr int kCalm = 10;
  uint64_t come_ = 0, begun_ = 0, refused_ = 0;
  bool dropped_ = false;  // at the last look: what it has changed does not show yet
  int calm_ = kCalm;      // looks since calls were lost
};

// Refuses a call that has lost half of its time before it was read. Where more calls come than can be read, later ones
// have better chances, and the rest of this one's time is unlikely to be enough. `waited`: UnreadAge. `limit`: the time
// from when the client sent the call to its deadline, or how long a call without one may wait. DEADLINE_EXCEEDED: the
// deadline has passed; RESOURCE_EXHAUSTED, with a RetryInfo: it has not, or there is none.
absl::Status CheckWait(Clock::duration waited, Clock::duration limit, bool has_deadline);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_GUARD_UNREAD_AGE_H_
