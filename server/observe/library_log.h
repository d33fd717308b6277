// What gRPC and Protobuf have to say goes through our log, as JSON and at a bounded rate: a peer that sends nonsense
// makes both talk.
#ifndef EDGEWISE_SERVER_OBSERVE_LIBRARY_LOG_H_
#define EDGEWISE_SERVER_OBSERVE_LIBRARY_LOG_H_

namespace edgewise::server {

// Once, after StartLog and before the first use of either library.
void RouteLibraryLogs();

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OBSERVE_LIBRARY_LOG_H_
