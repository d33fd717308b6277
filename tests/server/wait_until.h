// Waits for what another thread does.
#ifndef EDGEWISE_TESTS_SERVER_WAIT_UNTIL_H_
#define EDGEWISE_TESTS_SERVER_WAIT_UNTIL_H_

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "server/request/request.h"

namespace edgewise::server {

// A minute is a hang, on a machine that is busy too: what a test waits for comes, or the test fails and says what.
constexpr std::chrono::seconds kHang(60);

// Waits until done() is true.
inline ::testing::AssertionResult WaitUntil(const std::string& what, const std::function<bool()>& done) {
  const Time end = Clock::now() + kHang;
  while (!done()) {
    if (Clock::now() > end) return ::testing::AssertionFailure() << "waited a minute for " << what;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return ::testing::AssertionSuccess();
}

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_WAIT_UNTIL_H_
