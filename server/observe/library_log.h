// Sends the messages of gRPC and Protobuf to the server's log, as JSON and at a bounded rate: peers that send malformed
// bytes make both libraries log.
#ifndef EDGEWISE_SERVER_OBSERVE_LIBRARY_LOG_H_
#define EDGEWISE_SERVER_OBSERVE_LIBRARY_LOG_H_

namespace edgewise::server {

// Call once, after StartLog and before the first use of either library.
void RouteLibraryLogs();

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OBSERVE_LIBRARY_LOG_H_
