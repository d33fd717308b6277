// Degrades a request under pressure where its client has agreed (Work::may_degrade). Samples go first, down to one, so
// that the answer is that of the first samples of its ensemble; then edges of that sample, by a lower cap. For the same
// time, fewer samples with all their edges hold more edges in total.
#ifndef EDGEWISE_SERVER_SCHEDULE_DEGRADE_H_
#define EDGEWISE_SERVER_SCHEDULE_DEGRADE_H_

#include <chrono>
#include <cstdint>

#include "server/request/request.h"

namespace edgewise::server {

// The demand of a Predict, the predicted seconds and, where it may be degraded, those of the least answer that it may
// get. Edges can be given up only where a lower cap is predicted to save time.
Forecast MakeForecast(const LoadedModel& loaded, const Work& work);

// The seconds until the deadline; infinity where there is none.
double SlackOf(const Ticket& ticket, Time now);

// The predicted seconds of the least that an answer can be: under consent of one sample with the lowest cap, else of
// the whole request.
double LeastSeconds(const Request& request);

// The predicted seconds that the request may give up, of those that it can use before its deadline. 0: none.
double SpareSeconds(const Request& request, Time now);

// The samples and the cap of an answer. A cap (of CapRange) goes with one sample; 0: it stays as it is.
struct Choice {
  uint32_t samples = 1;
  double cap = 0.0;
};

// The most that is predicted to take at most `seconds`, and its first sample at most `first` seconds; or the least that
// the request may get. Equal requests get caps of one ladder, with eight rungs to each half.
Choice ChoiceWithin(const Request& request, double seconds, double first);

// The time that an answer takes on its way.
inline constexpr std::chrono::milliseconds kAnswer{1};

// Lowers a request under consent that starts now to fit its deadline. Samples: a first guess, which Passes corrects as
// they run. Edges: a cap that is likely to meet the deadline, since it cannot be changed later. `max_wave_tokens`:
// where one sample of all inputs has more, no sample can be left out once it runs.
void LowerToDeadline(Request& request, int64_t max_wave_tokens, Time now);

// Lowers a request under consent to the choice, where it has more, with its demand and its predicted seconds. A cap is
// lowered before the request runs.
void Lower(Request& request, const Choice& choice, DegradedBy reason);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_DEGRADE_H_
