// Brief requests that end on the thread that pushed them, which borrows the engine.
#include <gtest/gtest.h>

#include <atomic>
#include <list>
#include <thread>
#include <vector>

#include "server/schedule/engine.h"
#include "tests/server/engine_fixture.h"

namespace edgewise::server {
namespace {

class LoanTest : public EngineTest {
 protected:
  LoanTest() { Load("sbm"); }

  void PushBrief(RequestQueue& queue) {
    ended_ = false;
    RequestPtr request = Predict(outcomes_.emplace_back());
    request->forecast.seconds = RequestQueue::kLoanSeconds;
    request->ticket.alone = true;
    model_->metrics->CountValid(*request, 0.0);
    request->done = [this, done = request->done, own = std::this_thread::get_id()](const absl::Status& status) {
      here_ = std::this_thread::get_id() == own;
      done(status);
      ended_ = true;
    };
    ASSERT_TRUE(queue.Push(request).ok());
  }
  // Pushes brief requests, one after the other, until one is lent: the engine has to wait for work first.
  void PushUntilLent(RequestQueue& queue) {
    for (here_ = false; !here_;) {
      PushBrief(queue);
      while (!ended_) std::this_thread::yield();
    }
  }

  std::list<Outcome> outcomes_;                     // of what was pushed
  std::atomic<bool> here_ = false, ended_ = false;  // the last to end did so on the thread that pushed it
};

TEST_F(LoanTest, ABriefRequestOfAnIdleServerEndsOnTheThreadThatPushedIt) {
  RequestQueue queue({}, [this] { return now(); });
  Engine engine(queue, OneGeneration());
  engine.Start(true);
  PushUntilLent(queue);
  EXPECT_EQ(outcomes_.back().answers, 1);
  Outcome next;  // the engine goes on by itself
  RequestPtr request = Predict(next);
  model_->metrics->CountValid(*request, 0.0);
  ASSERT_TRUE(queue.Push(request).ok());
  queue.Close();
  engine.Join();
  EXPECT_EQ(next.answers, 1);
  for (const Outcome& outcome : outcomes_) EXPECT_TRUE(outcome.result.status.ok()) << outcome.result.status;
}

TEST_F(LoanTest, EndsWhenOtherWorkComesOrItsTimeIsOver) {
  for (const bool others : {true, false}) {
    RequestQueue queue({}, [this] { return now(); });
    Engine engine(queue, OneGeneration());
    engine.Start(true);
    Outcome other;
    PushUntilLent(queue);
    backend_->CancelAfter(0, [&] {
      if (!others) milliseconds_ += 2;
      RequestPtr request = Predict(other);
      model_->metrics->CountValid(*request, 0.0);
      if (others) {
        EXPECT_TRUE(queue.Push(request).ok());
      }
    });
    PushBrief(queue);
    queue.Close();
    engine.Join();
    EXPECT_FALSE(here_);
    EXPECT_EQ(outcomes_.back().answers, 1);
    EXPECT_TRUE(outcomes_.back().result.status.ok()) << outcomes_.back().result.status;
    EXPECT_EQ(other.answers, others ? 1 : 0);
  }
}

TEST_F(EngineTest, RequestsOfManyThreadsEndOnceWhoeverComputesThem) {
  Load("sbm");
  RequestQueue queue({});
  Engine engine(queue, OneGeneration());
  engine.Start(true);
  constexpr int kThreads = 4, kEach = 25;
  std::vector<Outcome> outcomes(kThreads * kEach);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) {
          RequestPtr request = Predict(outcomes[t * kEach + i]);
          request->forecast.seconds = 0.0005;
          request->ticket.alone = true;
          model_->metrics->CountValid(*request, 0.0);
          EXPECT_TRUE(queue.Push(request).ok());
        }
      });
    }
  }
  queue.Close();
  engine.Join();
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.answers, 1);
    EXPECT_TRUE(outcome.result.status.ok()) << outcome.result.status;
  }
}

}  // namespace
}  // namespace edgewise::server
