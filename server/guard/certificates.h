// The certificate, key and client CA of TLS. gRPC's own watcher of files hands over what is in them at the moment, a
// half-written certificate too; here they are checked together, and what is wrong leaves those from before in place.
#ifndef EDGEWISE_SERVER_GUARD_CERTIFICATES_H_
#define EDGEWISE_SERVER_GUARD_CERTIFICATES_H_

#include <grpc/grpc_security.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/base/options.h"
#include "server/guard/secret_file.h"

namespace edgewise::server {

// Whether the time of the first certificate in a text of PEM is over; true also if there is none.
bool HasExpired(const std::string& pem);

class Certificates {
 public:
  // INVALID_ARGUMENT: a file is none of PEM, the key is not that of the certificate, which is not in its time;
  // NOT_FOUND: a file cannot be read.
  static absl::StatusOr<std::shared_ptr<Certificates>> Read(const SecurityOptions& security);

  // Reads the files again where one of them has changed; false: none has. Errors: Read, and those from before stay. One
  // thread at a time.
  absl::StatusOr<bool> ReadAgain();

  struct Files {
    std::string certificate, key, client_ca;  // PEM; the last may be empty: clients show none
  };
  // Those that were read last. Any thread.
  std::shared_ptr<const Files> files();

  // Credentials whose new connections get what was read last. This must outlive them. Any thread; call once.
  grpc_server_credentials* MakeCredentials();

 private:
  explicit Certificates(const SecurityOptions& security);
  static absl::StatusOr<Files> ReadFiles(const SecurityOptions& security);
  // gRPC asks it before each handshake.
  grpc_ssl_certificate_config_reload_status Fetch(grpc_ssl_server_certificate_config** config);

  const SecurityOptions security_;
  std::vector<FileWatch> watches_;
  absl::Mutex mutex_;
  std::shared_ptr<const Files> files_ ABSL_GUARDED_BY(mutex_);
  bool fetched_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_GUARD_CERTIFICATES_H_
