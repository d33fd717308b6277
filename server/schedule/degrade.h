// What a request gives up under pressure where its client has agreed (Request::consent): samples. The answer is then
// that of the first samples of its ensemble. Pure functions.
#ifndef EDGEWISE_SERVER_SCHEDULE_DEGRADE_H_
#define EDGEWISE_SERVER_SCHEDULE_DEGRADE_H_

#include <cstdint>

#include "server/request.h"

namespace edgewise::server {

// The seconds until the deadline; infinity where there is none.
double SlackOf(const Request& request, Time now);

// The predicted seconds of the least that an answer can be: of one sample under consent, else of the whole request.
double LeastSeconds(const Request& request);

// The predicted seconds that the request may give up, of those that it can use before its deadline. 0: none.
double SpareSeconds(const Request& request, Time now);

// The most samples that are predicted to take at most `seconds`, at least one and at most those of the request.
uint32_t SamplesWithin(const Request& request, double seconds);

// Lowers a request under consent to `samples`, if it has more, with its demand and its predicted seconds.
void LowerSamples(Request& request, uint32_t samples, DegradedBy reason);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_SCHEDULE_DEGRADE_H_
