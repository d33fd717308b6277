// Machines without /etc/hosts, such as a bare chroot, do not know the name "localhost".
#ifndef EDGEWISE_TESTS_CLIENT_LOCALHOST_H_
#define EDGEWISE_TESTS_CLIENT_LOCALHOST_H_

#include <netdb.h>

namespace edgewise::testing {

inline constexpr char kNoLocalhost[] = "the machine does not know the name localhost (/etc/hosts)";

inline bool KnowsLocalhost() {
  addrinfo* found = nullptr;
  if (getaddrinfo("localhost", nullptr, nullptr, &found) != 0) return false;
  freeaddrinfo(found);
  return true;
}

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_CLIENT_LOCALHOST_H_
