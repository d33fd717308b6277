#include "server/http/turns.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <thread>

namespace edgewise::server {
namespace {

class TurnsTest : public ::testing::Test {
 protected:
  // Work that adds its letter when it runs. `lasts`: for longer than a thread runs one after the other.
  void Start(const std::string& principal, char letter, bool lasts = false) {
    turns_.Start(principal, [this, letter, lasts] {
      order_ += letter;
      if (lasts) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  // Runs what was posted last time; what that posts comes after it.
  void RunPosted() {
    const std::deque<std::function<void()>> posted = std::exchange(posted_, {});
    for (const auto& run : posted) run();
  }

  std::deque<std::function<void()>> posted_;
  std::string order_;
  Turns turns_{[this](std::function<void()> run) { posted_.push_back(std::move(run)); }, 2};
};

TEST_F(TurnsTest, PrincipalsTakeTurnsAndThoseOfOneKeepTheirOrder) {
  for (const char letter : {'a', 'b', 'c', 'd'}) Start("one", letter, true);
  EXPECT_EQ(order_, "") << "nothing runs on the thread that reads";
  EXPECT_EQ(posted_.size(), 2u) << "one for each thread";
  RunPosted();
  EXPECT_EQ(order_, "ab");
  Start("two", 'x', true);  // came while the threads read
  Start("two", 'y', true);
  while (!posted_.empty()) RunPosted();
  EXPECT_EQ(order_, "abcxdy");
}

TEST_F(TurnsTest, ShortWorkRunsTogetherAndAThreadThatHasStoppedStartsAgain) {
  for (int round = 0; round < 2; ++round) {
    order_.clear();
    Start("one", 'a');
    Start("two", 'b');
    RunPosted();
    EXPECT_EQ(order_.substr(0, 1), "a");
    while (!posted_.empty()) RunPosted();
    EXPECT_EQ(order_, "ab") << round;
  }
}

TEST_F(TurnsTest, WorkMayStartWork) {
  turns_.Start("one", [this] { Start("one", 'b'); });
  while (!posted_.empty()) RunPosted();
  EXPECT_EQ(order_, "b");
}

}  // namespace
}  // namespace edgewise::server
