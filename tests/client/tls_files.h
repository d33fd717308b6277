// A certificate for localhost that signs itself, and its key, as files of this process.
#ifndef EDGEWISE_TESTS_CLIENT_TLS_FILES_H_
#define EDGEWISE_TESTS_CLIENT_TLS_FILES_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/client/fake_service.h"

namespace edgewise::testing {

class TlsFiles {
 public:
  // False: there is no openssl program.
  bool Make() const {
    const std::string command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 " +
                                std::string("-subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout '") +
                                key_ + "' -out '" + certificate_ + "' > /dev/null 2>&1";
    return std::system(command.c_str()) == 0;
  }
  ~TlsFiles() {
    std::remove(key_.c_str());
    std::remove(certificate_.c_str());
  }

  const std::string& key() const { return key_; }
  const std::string& certificate() const { return certificate_; }
  ServerTls ForServer(bool mutual) const { return {Read(certificate_), Read(key_), mutual}; }

 private:
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }

  // Tests run at the same time, each in a process of its own.
  const std::string base_ = ::testing::TempDir() + "edgewise_tls_" + std::to_string(getpid());
  const std::string key_ = base_ + ".key";
  const std::string certificate_ = base_ + ".pem";
};

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_CLIENT_TLS_FILES_H_
