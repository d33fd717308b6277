// Requests with images on threads of their own: who waits, who is refused, what is not decoded.
#include "server/rpc/image_threads.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "server/status_details.h"
#include "tests/server/test_models.h"
#include "tests/support/paths.h"

namespace edgewise::server {
namespace {

class ImageThreadsTest : public ::testing::Test {
 protected:
  ImageThreadsTest() {
    const std::vector<LoadJob> jobs = repository_.Scan().value();
    for (const LoadJob& job : jobs) repository_.Load(job, TestBackend());
  }

  static v1::PredictRequest Message(const std::string& bytes) {
    v1::PredictRequest message;
    message.set_model("vit_classes");
    message.add_inputs()->mutable_sequence()->set_image(bytes);
    return message;
  }
  static std::string Photo() {
    std::ifstream file(tests::TestdataFolder() + "_images/files/photo.png", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  MemoryHold Held(uint64_t bytes) {
    MemoryHold hold(memory_);
    EXPECT_TRUE(hold.Resize(bytes).ok());
    return hold;
  }
  double Requests(const std::string& code, const std::string& version = "1") const {
    const std::string series =
        "\nedgewise_requests_total{code=\"" + code + "\",model=\"vit_classes\",version=\"" + version + "\"} ";
    const std::string text = metrics_.Render();
    const size_t at = text.find(series);
    return at == std::string::npos ? 0.0 : std::stod(text.substr(at + series.size()));
  }

  // Where the reply of a request goes.
  struct End {
    absl::Status status;
    absl::Notification come;
    void Set(const absl::Status& of) {
      status = of;
      come.Notify();
    }
    absl::StatusCode Wait() {
      EXPECT_TRUE(come.WaitForNotificationWithTimeout(absl::Seconds(60)));
      return status.code();
    }
  };

  const Time now_ = Time() + std::chrono::hours(1);
  Metrics metrics_;
  Repository repository_{tests::TestdataFolder() + "_images", metrics_};
  RequestQueue queue_{{}, [this] { return now_; }};
  const ServerOptions options_;
  MemoryLedger memory_{uint64_t{1} << 30};
  RequestHandler handler_{options_, memory_, repository_, queue_};
};

TEST_F(ImageThreadsTest, OneThatWaitsKeepsNoCallerAndFurtherOnesAreToldToComeBack) {
  End first, second, third;
  absl::Notification go_on, reached;
  {
    ImageThreads threads(handler_, 1, 1);
    threads.Start(Message("no image"), Held(7), {.reply = [&](const absl::Status& status) {
                    reached.Notify();
                    go_on.WaitForNotification();
                    first.Set(status);
                  }});
    EXPECT_TRUE(reached.WaitForNotificationWithTimeout(absl::Seconds(60)));
    threads.Start(Message("no image"), Held(5), {.reply = [&](const absl::Status& status) { second.Set(status); }});
    EXPECT_EQ(memory_.used(), 12u);
    threads.Start(Message(Photo()), Held(3), {.reply = [&](const absl::Status& status) { third.Set(status); }});
    EXPECT_TRUE(third.come.HasBeenNotified());
    EXPECT_EQ(third.status.code(), absl::StatusCode::kResourceExhausted) << third.status;
    EXPECT_TRUE(third.status.GetPayload(kRetryInfoUrl).has_value());
    EXPECT_EQ(memory_.used(), 12u);
    EXPECT_FALSE(second.come.HasBeenNotified());
    go_on.Notify();
    EXPECT_EQ(first.Wait(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(second.Wait(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(memory_.used(), 0u);
  EXPECT_EQ(Requests("RESOURCE_EXHAUSTED"), 1.0);
  EXPECT_EQ(Requests("INVALID_ARGUMENT"), 2.0);
}

// A thread that is kept busy by a request of its own while others come, in the order of `names`; then they are
// answered.
class ImageTurnsTest : public ImageThreadsTest {
 protected:
  using Answers = std::vector<std::string>;  // "name number", and why where it was refused

  Answers AnswersOf(size_t most, const std::vector<std::string>& names) {
    Answers answers;  // after the first one all come from the thread, but for refusals, which come before it goes on
    absl::Notification reached, go_on;
    {
      ImageThreads threads(handler_, most, 1);
      threads.Start(Message("no image"), Held(1), {.principal = {"busy"}, .reply = [&](const absl::Status&) {
                                                     reached.Notify();
                                                     go_on.WaitForNotification();
                                                   }});
      EXPECT_TRUE(reached.WaitForNotificationWithTimeout(absl::Seconds(60)));
      std::map<std::string, int> counts;
      absl::BlockingCounter all(static_cast<int>(names.size()));
      for (const std::string& name : names) {
        const std::string number = absl::StrCat(name, " ", ++counts[name]);
        threads.Start(Message("no image"), Held(1),
                      {.principal = {name}, .reply = [&answers, &all, number](const absl::Status& status) {
                         answers.push_back(absl::IsResourceExhausted(status) ? number + " refused" : number);
                         all.DecrementCount();
                       }});
      }
      go_on.Notify();
      all.Wait();
    }
    EXPECT_EQ(memory_.used(), 0u);
    return answers;
  }
};

TEST_F(ImageTurnsTest, PrincipalsTakeTurns) {
  EXPECT_EQ(AnswersOf(16, {"a", "a", "a", "a", "b", "c", "b"}),
            (Answers{"a 1", "b 1", "c 1", "a 2", "b 2", "a 3", "a 4"}));
}

TEST_F(ImageTurnsTest, OneThatHasManyGivesWayWhereTheLineIsFull) {
  EXPECT_EQ(AnswersOf(3, {"a", "a", "a", "a", "b", "b", "c"}),
            (Answers{"a 4 refused", "a 3 refused", "b 2 refused", "a 2 refused", "a 1", "b 1", "c 1"}));
}

TEST_F(ImageThreadsTest, WhatNobodyWaitsForIsNotDecoded) {
  End late, cancelled;
  std::stop_source stop;
  stop.request_stop();
  ImageThreads threads(handler_, 8, 2);
  // Decoded, it would be INVALID_ARGUMENT.
  threads.Start(Message("no image"), Held(1),
                {.deadline = now_, .reply = [&](const absl::Status& status) { late.Set(status); }});
  threads.Start(Message("no image"), Held(1),
                {.stopping = stop.get_token(), .reply = [&](const absl::Status& status) { cancelled.Set(status); }});
  EXPECT_EQ(late.Wait(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(cancelled.Wait(), absl::StatusCode::kCancelled);
  EXPECT_EQ(handler_.in_flight(), 0);
}

TEST_F(ImageThreadsTest, ImagesAreFoundInBothSequences) {
  v1::PredictRequest message;
  EXPECT_FALSE(HasImages(message));
  message.add_inputs()->mutable_sequence()->set_text("a");
  EXPECT_FALSE(HasImages(message));
  message.add_inputs()->mutable_second()->set_image("a");
  EXPECT_TRUE(HasImages(message));
  EXPECT_TRUE(HasImages(Message("a")));
}

}  // namespace
}  // namespace edgewise::server
