// Models load beside requests: on a thread of their own, in small pieces where the backend takes no other thread.
#include "server/models/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>
#include <string>
#include <thread>

#include "model/kinds/kind.h"
#include "server/schedule/engine.h"
#include "tests/model/deferred_backend.h"
#include "tests/model/run_model.h"
#include "tests/server/test_models.h"

namespace edgewise::server {
namespace {

constexpr auto kHang = std::chrono::seconds(60);

// Keeps the preparation of a matrix waiting while the gate is closed, and sees which threads use it.
class GatedBackend : public testing::DeferredBackend {
 public:
  explicit GatedBackend(bool beside) : DeferredBackend(testing::MakeBackend()), beside_(beside) {}

  bool PreparesBeside() const override { return beside_; }
  absl::StatusOr<Buffer> Allocate(int64_t floats) override {
    See(users_);
    return DeferredBackend::Allocate(floats);
  }
  absl::StatusOr<std::unique_ptr<LinearWeights>> PrepareLinear(std::span<const float> weight,
                                                               std::span<const float> bias, int64_t out, int64_t in,
                                                               Activation activation) override {
    See(users_);
    waiting_ = true;
    const absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&open_));
    waiting_ = false;
    return DeferredBackend::PrepareLinear(weight, bias, out, in, activation);
  }
  absl::Status Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                      std::span<EdgeCap> caps, Matrix out) override {
    See(attenders_);
    return DeferredBackend::Attend(inputs, problems, caps, out);
  }

  void SetOpen(bool open) {
    const absl::MutexLock lock(&mutex_);
    open_ = open;
  }
  bool waiting() const { return waiting_; }
  std::set<std::thread::id> users() { return Seen(users_); }
  std::set<std::thread::id> attenders() { return Seen(attenders_); }

 private:
  void See(std::set<std::thread::id>& threads) {
    const absl::MutexLock lock(&seen_);
    threads.insert(std::this_thread::get_id());
  }
  std::set<std::thread::id> Seen(const std::set<std::thread::id>& threads) {
    const absl::MutexLock lock(&seen_);
    return threads;
  }

  const bool beside_;
  std::atomic<bool> waiting_ = false;
  absl::Mutex mutex_, seen_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  std::set<std::thread::id> users_ ABSL_GUARDED_BY(seen_), attenders_ ABSL_GUARDED_BY(seen_);
};

class LoaderTest : public ::testing::Test {
 protected:
  void TearDown() override {
    backend_->SetOpen(true);
    loader_->Stop();
    queue_.Close();
    engine_.Join();
  }

  void Start(bool beside, absl::Duration poll = absl::InfiniteDuration()) {
    backend_ = std::make_unique<GatedBackend>(beside);
    loader_ = std::make_unique<Loader>(
        repository_, *backend_, [this](const auto& work) { return queue_.RunOnEngine(work); }, poll);
    engine_.Start();
    ASSERT_TRUE(queue_
                    .RunOnEngine([this] {
                      engine_thread_ = std::this_thread::get_id();
                      return absl::OkStatus();
                    })
                    .ok());
    EXPECT_TRUE(loader_->Scan().ok());
    loader_->Start();
  }

  bool WaitFor(const std::function<bool()>& done) {
    const auto end = Clock::now() + kHang;
    while (!done() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return done();
  }
  bool WaitForVersion(int64_t version) {
    return WaitFor([&] {
      const Resolved resolved = repository_.Resolve("m", 0);
      return resolved.status.ok() && resolved.loaded->version == version;
    });
  }

  // Computes a request of the version that serves, to its end.
  absl::Status Predict() {
    auto request = std::make_unique<Request>();
    request->ticket.model = repository_.Resolve("m", 0).loaded;
    request->work.tokens = request->work.cost = 4;
    request->ticket.deadline = Time::max();
    request->work.inputs.push_back(testing::MakeInput(*request->ticket.model->model, {1, 2, 3, 4}));
    const auto answer = std::make_shared<std::promise<absl::Status>>();
    request->done = [answer](const absl::Status& status) { answer->set_value(status); };
    request->ticket.model->metrics->CountValid(*request, 0.0);
    const absl::Status status = queue_.Push(request);
    if (!status.ok()) return status;
    std::future<absl::Status> answered = answer->get_future();
    if (answered.wait_for(kHang) != std::future_status::ready) return absl::DeadlineExceededError("no answer");
    return answered.get();
  }

  TestFolder folder_;
  Metrics metrics_;
  std::unique_ptr<GatedBackend> backend_;  // outlives the models
  Repository repository_{{folder_.path()}, metrics_};
  RequestQueue queue_{{}};
  Engine engine_{queue_, {}};
  std::unique_ptr<Loader> loader_;
  std::thread::id engine_thread_;
};

TEST_F(LoaderTest, RequestsAreAnsweredByTheOldVersionWhileANewOneLoads) {
  folder_.AddModel("sbm", "m", 1);
  Start(true);
  ASSERT_TRUE(WaitForVersion(1));
  backend_->SetOpen(false);
  folder_.AddModel("dense", "m", 2);
  ASSERT_TRUE(loader_->Scan().ok());
  ASSERT_TRUE(WaitFor([this] { return backend_->waiting(); }));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Predict().ok());
  EXPECT_EQ(repository_.Resolve("m", 0).loaded->version, 1);
  backend_->SetOpen(true);
  EXPECT_TRUE(WaitForVersion(2));
  EXPECT_TRUE(Predict().ok());
}

TEST_F(LoaderTest, AScanWhileItsVersionLoadsIsNotLost) {
  folder_.AddModel("sbm", "m", 1);
  Start(true);
  ASSERT_TRUE(WaitForVersion(1));
  const auto attention = [this] {
    return AttentionName(repository_.Resolve("m", 1).loaded->model->config().attention);
  };
  backend_->SetOpen(false);
  folder_.AddModel("dense", "m", 1);
  ASSERT_EQ(loader_->Scan().value(), 1u);
  ASSERT_TRUE(WaitFor([this] { return backend_->waiting(); }));
  folder_.AddModel("ssa-local", "m", 1);
  EXPECT_EQ(loader_->Scan().value(), 1u);
  EXPECT_EQ(loader_->Scan().value(), 0u) << "one is enough";
  backend_->SetOpen(true);
  EXPECT_TRUE(WaitFor([&] { return attention() == "ssa/local"; })) << attention();
  EXPECT_EQ(repository_.List()[0].error, "");
}

TEST_F(LoaderTest, OnlyTheEnginesThreadUsesABackendThatTakesNoOther) {
  folder_.AddModel("sbm", "m", 1);
  Start(false);
  ASSERT_TRUE(WaitForVersion(1));
  const std::set<std::thread::id> engine = {engine_thread_};
  EXPECT_EQ(backend_->users(), engine);
  EXPECT_EQ(backend_->attenders(), engine);
}

TEST_F(LoaderTest, TheSelfTestRunsOnTheEnginesThreadAndTheRestBesideIt) {
  folder_.AddModel("sbm", "m", 1);
  Start(true);
  ASSERT_TRUE(WaitForVersion(1));
  EXPECT_EQ(backend_->attenders(), std::set<std::thread::id>{engine_thread_});
  EXPECT_EQ(backend_->users().size(), 2u);
}

TEST_F(LoaderTest, APollFindsWhatIsNewAndTriesABrokenVersionOnce) {
  folder_.AddModel("sbm", "m", 1);
  folder_.Write("bad/1/config.json", "{");
  Start(true, absl::Milliseconds(1));
  ASSERT_TRUE(WaitForVersion(1));
  ASSERT_TRUE(WaitFor([this] { return repository_.settled(); }));
  folder_.AddModel("dense", "m", 2);
  EXPECT_TRUE(WaitForVersion(2));
  std::filesystem::remove_all(folder_.path() + "/m/2");
  EXPECT_TRUE(WaitForVersion(1));
  loader_->Stop();
  EXPECT_NE(metrics_.Render().find(R"(model_loads_total{model="bad",result="error",version="1"} 1)"),
            std::string::npos);
  EXPECT_EQ(repository_.Scan(Scanning::kPoll)->size(), 0u);
  EXPECT_EQ(repository_.Scan(Scanning::kAsked)->size(), 1u);
}

}  // namespace
}  // namespace edgewise::server
