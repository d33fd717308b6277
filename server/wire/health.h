// grpc.health.v1: whether the server, and each model by its name, serves. gRPC's own would do, but brings threads that
// poll beside those of the calls (raw_call.h): they read what nobody has time for.
#ifndef EDGEWISE_SERVER_WIRE_HEALTH_H_
#define EDGEWISE_SERVER_WIRE_HEALTH_H_

#include <map>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/wire/context.h"

namespace edgewise::server {

// Any thread. A service that was never set is NOT_FOUND to Check, and SERVICE_UNKNOWN to Watch, which waits for it.
class HealthService final : public RawService {
 public:
  // `context` must outlive the service.
  explicit HealthService(RpcContext& context);

  // "" is the server.
  void Set(const std::string& service, bool serves);
  // All are NOT_SERVING from now on, whatever is set.
  void StopServing();
  // And calls of Watch end once their clients have been told: UNAVAILABLE.
  void Shutdown();

 private:
  class Call;
  class Check;
  class Watch;

  void LookAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int StatusOf(const std::string& service) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  RpcContext& context_;
  absl::Mutex mutex_;
  std::map<std::string, bool> serves_ ABSL_GUARDED_BY(mutex_);
  std::set<Watch*> watches_ ABSL_GUARDED_BY(mutex_);
  bool serving_ ABSL_GUARDED_BY(mutex_) = true;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_HEALTH_H_
