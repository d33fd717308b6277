// How much memory generations that run side by side have for rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "model/load.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
#include "server/schedule/engine.h"
#include "tests/model/deferred_backend.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::server {
namespace {

// Counts the floats of rows of generations.
class CountingBackend : public testing::DeferredBackend {
 public:
  using DeferredBackend::DeferredBackend;
  absl::StatusOr<Buffer> AllocateIn(Workspace workspace, int64_t floats) override {
    absl::StatusOr<Buffer> made = Allocate(floats);
    if (!made.ok() || workspace != Workspace::kPrompt) return made;
    live_ += floats;
    most_ = std::max(most_, live_);
    auto kept = std::make_shared<Buffer>(*std::move(made));
    return Buffer(kept->data(), floats, [this, kept](float*) { live_ -= kept->size(); });
  }
  int64_t live() const { return live_; }
  int64_t TakeMost() { return std::exchange(most_, live_); }

 private:
  int64_t live_ = 0, most_ = 0;
};

// Runs `count` generations side by side; the tokens of each.
std::vector<std::vector<int32_t>> Generate(const std::shared_ptr<const LoadedModel>& model, size_t count) {
  std::vector<std::vector<int32_t>> tokens(count);
  TaskQueue queue({}, [] { return Time(); });
  Engine engine(queue, count, 1 << 30, std::chrono::seconds(1), [] {});
  for (size_t g = 0; g < count; ++g) {
    auto task = std::make_unique<Task>();
    task->model = model;
    task->tokens = task->cost = 9;
    task->deadline = Time::max();
    task->done = [](TaskResult result) { EXPECT_TRUE(result.status.ok()) << result.status; };
    task->generation = std::make_unique<GenerationWork>();
    task->generation->prompt = *model->model->Prepare({3, 1, 4, 1, 5, 9, 2, 6, 5}, TruncateMode::kRefuse);
    task->generation->options.max_new_tokens = 60;  // beyond the context, where the text is run again for each token
    task->generation->options.samples = 3;
    task->generation->options.seed = g;
    task->generation->ready = [] { return true; };
    task->generation->token = [&of = tokens[g]](const GeneratedToken& token, const GenerationProgress&) {
      of.push_back(token.token_id);
    };
    model->metrics->AddQueued(1, 9);
    EXPECT_TRUE(queue.Push(std::move(task)).ok());
  }
  queue.Close();
  engine.Start();
  engine.Join();
  return tokens;
}

TEST(EngineMemoryTest, GenerationsSideBySideHaveTheRowsOfOne) {
  Metrics metrics;
  CountingBackend backend(testing::MakeBackend());
  auto model = std::make_shared<LoadedModel>();
  model->name = "lm-ssa-local";
  model->version = 1;
  model->model = *LoadModel(tests::TestdataFolder() + "/lm-ssa-local/1", backend);
  model->metrics = metrics.ForModel(model->name, 1).Loaded(*model->model);
  ASSERT_LT(model->model->config().max_position_embeddings, 69);

  const auto alone = Generate(model, 1);
  EXPECT_EQ(alone[0].size(), 60u);
  EXPECT_EQ(backend.live(), 0);
  const int64_t of_one = backend.TakeMost();
  EXPECT_GT(of_one, 0);
  const auto together = Generate(model, 3);
  EXPECT_EQ(together[0], alone[0]);
  for (const auto& tokens : together) EXPECT_EQ(tokens.size(), 60u);
  EXPECT_EQ(backend.TakeMost(), of_one);
}

}  // namespace
}  // namespace edgewise::server
