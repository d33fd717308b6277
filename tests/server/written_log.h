// The log of the server in this process, from the construction on.
#ifndef EDGEWISE_TESTS_SERVER_WRITTEN_LOG_H_
#define EDGEWISE_TESTS_SERVER_WRITTEN_LOG_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "server/observe/log.h"

namespace edgewise::server {

class WrittenLog {
 public:
  WrittenLog() : real_(dup(STDERR_FILENO)) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    StartLog(LogLevel::kDebug);
    reader_ = std::thread([this, from = ends[0]] {
      char part[1 << 16];
      for (ssize_t got = 0; (got = read(from, part, sizeof part)) > 0;) text_.append(part, static_cast<size_t>(got));
      close(from);
    });
  }
  ~WrittenLog() { Stop(); }
  WrittenLog(const WrittenLog&) = delete;

  // Everything that was written to stderr. Nothing is logged after it.
  const std::string& Stop() {
    if (!reader_.joinable()) return text_;
    EXPECT_TRUE(StopLog());
    dup2(real_, STDERR_FILENO);  // closes the pipe
    close(real_);
    reader_.join();
    return text_;
  }
  // After Stop: the lines of these events.
  std::vector<nlohmann::json> Lines(const std::vector<std::string>& events) const {
    std::vector<nlohmann::json> lines;
    std::istringstream text(text_);
    for (std::string line; std::getline(text, line);) {
      if (!nlohmann::json::accept(line)) continue;  // not the log's
      nlohmann::json fields = nlohmann::json::parse(line);
      if (std::find(events.begin(), events.end(), fields["event"]) != events.end()) lines.push_back(std::move(fields));
    }
    return lines;
  }

 private:
  const int real_;
  std::thread reader_;
  std::string text_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_WRITTEN_LOG_H_
