// How long bytes wait in a socket before gRPC reads them. The deadline of a call is sent as a duration and begins when
// the call is read, so that this wait does not show anywhere else.
#ifndef EDGEWISE_SERVER_RPC_UNREAD_AGE_H_
#define EDGEWISE_SERVER_RPC_UNREAD_AGE_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "server/request.h"

namespace edgewise::server {

// Of one connection. One thread at a time.
class UnreadAge {
 public:
  // `received` bytes have come so far, of which `unread` are not read. Returns for how long the oldest of these has
  // been there: at most a sixteenth too long, or as much as lies between two calls; 0 where none was unread at the last
  // call.
  Clock::duration Observe(Time now, uint64_t received, uint64_t unread);
  // The last call saw nothing unread.
  bool idle() const { return marks_.empty(); }

 private:
  struct Mark {
    Time time;
    uint64_t received = 0;  // until then
  };
  // From the last one before the oldest unread byte came. They lie a sixteenth of its age apart: as many as the age has
  // e-foldings, times 16.
  std::vector<Mark> marks_;
};

// What to do where calls are lost since they are read late: they have waited for too long, or their clients have given
// them up before the server began them. gRPC parses all that it reads, so the thread that reads has as much work with a
// late call as with one that is answered. So connections end, with what waits in them unread, until the others can be
// read in time; and a few further ones are taken at a time, until it is seen that they can be read, too. One thread at
// a time; a look each 100 ms.
class LostCalls {
 public:
  static constexpr int kAnyNumber = std::numeric_limits<int>::max();
  struct Remedy {
    double drop = 0.0;        // this part of the bytes that are not read
    int accept = kAnyNumber;  // so many connections until the next look
  };
  // So many calls have come, begun, and been refused since they were late, so far. `late`: bytes wait for long.
  Remedy Look(uint64_t come, uint64_t begun, uint64_t refused, bool late);

 private:
  static constexpr int kCalm = 10;
  uint64_t come_ = 0, begun_ = 0, refused_ = 0;
  bool dropped_ = false;  // at the last look: what it has changed does not show yet
  int calm_ = kCalm;      // looks since calls were lost
};

// Refuses a call that has lost half of its time before it was read. Where more calls come than can be read, later ones
// have better chances, and what is left of this one's time would hardly be enough. `waited`: UnreadAge; `limit`: from
// when the client sent the call to its deadline, or for a call without one how long it may wait. DEADLINE_EXCEEDED: the
// deadline has passed; RESOURCE_EXHAUSTED, with a RetryInfo: it has not, or there is none.
absl::Status CheckWait(Clock::duration waited, Clock::duration limit, bool has_deadline);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_RPC_UNREAD_AGE_H_
