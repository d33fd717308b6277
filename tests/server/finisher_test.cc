// The end of requests beside the engine.
#include "server/schedule/finisher.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/cores.h"
#include "tests/server/engine_fixture.h"

namespace edgewise::server {
namespace {

class AnswersTest : public ::testing::Test {
 protected:
  struct End {
    int number;
    bool beside;  // not on the thread of the test
    absl::Status status;
  };

  // `first` is done at its end.
  std::shared_ptr<Request> Make(std::function<void()> first = [] {}) {
    auto request = std::make_shared<Request>();
    request->done = [this, number = ++made_, first = std::move(first)](const absl::Status& status) {
      first();
      const absl::MutexLock lock(&mutex_);
      ends_.push_back({number, std::this_thread::get_id() != own_, status});
    };
    return request;
  }

  const std::thread::id own_ = std::this_thread::get_id();
  int made_ = 0;
  absl::Mutex mutex_;
  std::vector<End> ends_ ABSL_GUARDED_BY(mutex_);
  Finisher finisher_;
};

TEST_F(AnswersTest, WithoutAThreadARequestHasEndedWhenEndReturns) {
  finisher_.End(Make(), absl::InternalError("it failed"));
  const absl::MutexLock lock(&mutex_);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_FALSE(ends_[0].beside);
  EXPECT_EQ(ends_[0].status, absl::InternalError("it failed"));
}

TEST_F(AnswersTest, TheThreadEndsEachOnceInOrderAndLetsItGo) {
  finisher_.Start();
  constexpr int kRequests = 20;
  std::vector<std::weak_ptr<Request>> requests;
  for (int i = 0; i < kRequests; ++i) {
    std::shared_ptr<Request> request = Make();
    requests.push_back(request);
    finisher_.End(std::move(request), absl::OkStatus());
  }
  finisher_.Stop();
  for (const std::weak_ptr<Request>& request : requests) EXPECT_TRUE(request.expired());
  const absl::MutexLock lock(&mutex_);
  ASSERT_EQ(ends_.size(), static_cast<size_t>(kRequests));
  for (int i = 0; i < kRequests; ++i) {
    EXPECT_EQ(ends_[i].number, i + 1);
    EXPECT_TRUE(ends_[i].beside);
    EXPECT_TRUE(ends_[i].status.ok());
  }
}

TEST_F(AnswersTest, InlineAndAfterAStopARequestHasEndedWhenEndReturns) {
  finisher_.Start();
  finisher_.SetInline(true);
  finisher_.End(Make(), absl::OkStatus());
  finisher_.SetInline(false);
  finisher_.Stop();
  finisher_.End(Make(), absl::OkStatus());
  const absl::MutexLock lock(&mutex_);
  ASSERT_EQ(ends_.size(), 2u);
  EXPECT_FALSE(ends_[0].beside || ends_[1].beside);
}

TEST_F(AnswersTest, WhereManyWaitTheCallerEndsItsOwn) {
  finisher_.Start();
  absl::Notification begun, go_on;
  finisher_.End(Make([&] {
                  begun.Notify();
                  go_on.WaitForNotification();
                }),
                absl::OkStatus());
  begun.WaitForNotification();
  for (size_t i = 0; i < Finisher::kMostWaiting; ++i) finisher_.End(Make(), absl::OkStatus());
  const auto ended = [this] {
    const absl::MutexLock lock(&mutex_);
    return ends_.size();
  };
  EXPECT_EQ(ended(), 0u);
  finisher_.End(Make(), absl::OkStatus());
  EXPECT_EQ(ended(), 1u);
  go_on.Notify();
  finisher_.Stop();
  EXPECT_EQ(ended(), Finisher::kMostWaiting + 2);
}

TEST_F(EngineTest, ComputesWhileAnAnswerIsWritten) {
  if (UsableCores() < 2) GTEST_SKIP() << "on one core the engine writes its answers itself";
  Load("sbm");
  RequestQueue queue({});
  Engine engine(queue, OneGeneration());
  absl::Notification writes, computes;
  Outcome first, second;
  RequestPtr request = Predict(first), next = Predict(second);
  model_->metrics->CountValid(*request, 0.0);
  model_->metrics->CountValid(*next, 0.0);
  request->done = [&, done = request->done](const absl::Status& status) {
    writes.Notify();
    computes.WaitForNotification();
    done(status);
  };
  engine.Start();
  ASSERT_TRUE(queue.Push(request).ok());
  writes.WaitForNotification();
  backend_->CancelAfter(0, [&] { computes.Notify(); });
  ASSERT_TRUE(queue.Push(next).ok());
  queue.Close();
  engine.Join();
  for (const Outcome* outcome : {&first, &second}) {
    EXPECT_EQ(outcome->answers, 1);
    EXPECT_TRUE(outcome->result.status.ok()) << outcome->result.status;
  }
}

}  // namespace
}  // namespace edgewise::server
