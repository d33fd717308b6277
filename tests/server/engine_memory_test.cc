// How much memory generations that run side by side have for rows.
#include <gtest/gtest.h>

#include <string>

#include "kernels/kv_page.h"
#include "model/load/load.h"
#include "model/load/reserve.h"
#include "server/models/repository.h"
#include "server/observe/metrics.h"
#include "server/schedule/engine.h"
#include "tests/model/counting_backend.h"
#include "tests/model/run_model.h"
#include "tests/support/paths.h"

namespace edgewise::server {
namespace {

constexpr int64_t kSamples = 3;

// Runs `count` generations side by side; the tokens of each.
std::vector<std::vector<int32_t>> Generate(const std::shared_ptr<const LoadedModel>& model, size_t count) {
  std::vector<std::vector<int32_t>> tokens(count);
  RequestQueue queue({}, [] { return Time(); });
  ServerOptions options;
  options.max_generations = static_cast<uint32_t>(count);
  Engine engine(queue, options);
  for (size_t g = 0; g < count; ++g) {
    auto request = std::make_unique<Request>();
    request->ticket.model = model;
    request->work.tokens = request->work.cost = 9;
    request->ticket.deadline = Time::max();
    request->done = [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; };
    request->work.generation.emplace();
    request->work.generation->prompt = *model->model->Prepare({3, 1, 4, 1, 5, 9, 2, 6, 5}, TruncateMode::kRefuse);
    request->work.generation->options.max_new_tokens =
        60;  // beyond the context, where the text is run again for each token
    request->work.generation->options.samples = kSamples;
    request->work.generation->options.seed = g;
    request->ready = [] { return true; };
    request->token = [&of = tokens[g]](const GeneratedToken& token, FinishReason) { of.push_back(token.token_id); };
    EXPECT_TRUE(queue.Push(request).ok());
  }
  queue.Close();
  engine.Start();
  engine.Join();
  return tokens;
}

TEST(EngineMemoryTest, GenerationsSideBySideHaveTheRowsOfOnePromptAndOneStep) {
  Metrics metrics;
  testing::CountingBackend backend(testing::MakeBackend());
  auto model = std::make_shared<LoadedModel>();
  model->name = "lm-ssa-local";
  model->version = 1;
  model->model = *LoadModel(tests::TestdataFolder() + "/lm-ssa-local/1", backend);
  model->metrics = metrics.ForModel(model->name, 1)->Loaded(metrics.other()->Event(), *model->model);
  ASSERT_LT(model->model->config().max_position_embeddings, 69);

  // Keys and values of a generation: one copy in the first layer, which all samples share, and one of each above it.
  const ModelConfig& config = model->model->config();
  const int64_t copies = 1 + (config.num_hidden_layers - 1) * kSamples;
  ASSERT_LE(config.max_position_embeddings, KvPage::kTokens);  // one page
  const int64_t caches = copies * KvPage::kTokens * 2 * config.num_attention_heads * config.head_dim;
  const int64_t weights = backend.live();
  backend.TakeMost();
  const auto alone = Generate(model, 1);
  EXPECT_EQ(alone[0].size(), 60u);
  EXPECT_EQ(backend.live(), weights);
  const int64_t rows_of_one = backend.TakeMost() - weights - caches;
  EXPECT_GT(rows_of_one, 0);
  constexpr int64_t kTogether = 8;
  const auto together = Generate(model, kTogether);
  EXPECT_EQ(together[0], alone[0]);
  for (const auto& tokens : together) EXPECT_EQ(tokens.size(), 60u);
  const int64_t taken = backend.TakeMost() - weights;
  EXPECT_LT(taken - kTogether * caches, 2 * rows_of_one) << "prompts run one after the other";
  const uint64_t limit = kTogether * caches * sizeof(float);
  ASSERT_TRUE(ReserveForGenerations(*model->model, {limit, kTogether, kSamples}).ok());
  EXPECT_LE(taken, backend.generation_floats());
}

}  // namespace
}  // namespace edgewise::server
