#include "server/models/repository.h"

#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/field_error.h"
#include "model/checkpoint/hugging_face/family.h"
#include "tests/server/retry_delay.h"
#include "tests/server/test_models.h"

namespace edgewise::server {
namespace {

class RepositoryTest : public ::testing::Test {
 protected:
  // Scans and loads what there is to load; returns how many that were.
  size_t Update() {
    std::vector<LoadJob> jobs = repository_.Scan().value();
    for (const LoadJob& job : jobs) repository_.Load(job, TestBackend());
    return jobs.size();
  }

  TestFolder folder_;
  Metrics metrics_;
  Repository repository_{{folder_.path()}, metrics_};
};

TEST_F(RepositoryTest, LatestIsTheHighestReadyVersionAsANumber) {
  folder_.AddModel("sbm", "m", 2);
  folder_.AddModel("dense", "m", 10);
  folder_.AddModel("sbm", "m", 11);
  folder_.Write("m/11/config.json", "{\"task\": 3}");
  EXPECT_EQ(Update(), 3u);
  EXPECT_EQ(repository_.Resolve("m", 0).loaded->version, 10);
  EXPECT_EQ(repository_.Resolve("m", 2).loaded->version, 2);
  EXPECT_TRUE(absl::IsFailedPrecondition(repository_.Resolve("m", 11).status));
  EXPECT_TRUE(absl::IsNotFound(repository_.Resolve("m", 3).status));
  EXPECT_TRUE(absl::IsNotFound(repository_.Resolve("other", 0).status));
}

TEST_F(RepositoryTest, TheFirstRequestOfAModelThatWasWarmedUpHasAPrediction) {
  const auto predicted = [](const Repository& repository) {
    const CostModel& costs = *repository.Resolve("m", 1).loaded->costs;
    return std::pair(costs.Predict({1, 4, 64, 64}), costs.Predict({1, 32, 4096, 4096}));
  };
  folder_.AddModel("sbm", "m", 1);
  Repository warm({folder_.path()}, metrics_, {}, 1.0);
  const std::vector<LoadJob> jobs = warm.Scan().value();
  for (const LoadJob& job : jobs) warm.Load(job, TestBackend());
  EXPECT_GT(predicted(warm).first, 0.0);
  EXPECT_GE(predicted(warm).second, predicted(warm).first);
  Update();
  EXPECT_EQ(predicted(repository_).first, 0.0);
}

TEST_F(RepositoryTest, LoadingIsUnavailableWithRetryInfo) {
  folder_.AddModel("sbm", "m", 1);
  ASSERT_EQ(repository_.Scan().value().size(), 1u);
  EXPECT_FALSE(repository_.settled());
  const Resolved resolved = repository_.Resolve("m", 0);
  EXPECT_TRUE(absl::IsUnavailable(resolved.status));
  EXPECT_EQ(resolved.status.message(), "model \"m\" version 1 is loading");
  EXPECT_GT(RetryDelay(resolved.status), 0.0);
}

TEST_F(RepositoryTest, FailedReloadKeepsTheOldVersionAndIsTriedAgain) {
  folder_.AddModel("sbm", "m", 1);
  Update();
  const std::shared_ptr<const LoadedModel> old = repository_.Resolve("m", 1).loaded;
  ASSERT_NE(old, nullptr);
  folder_.Write("m/1/model.safetensors", "broken");
  EXPECT_EQ(Update(), 1u);
  EXPECT_EQ(repository_.Resolve("m", 0).loaded, old);
  EXPECT_EQ(repository_.List()[0].state, ModelState::kReady);
  EXPECT_NE(repository_.List()[0].error, "");
  EXPECT_EQ(Update(), 1u);
  folder_.AddModel("sbm", "m", 1);
  EXPECT_EQ(Update(), 1u);
  EXPECT_NE(repository_.Resolve("m", 0).loaded, old);
  EXPECT_EQ(repository_.List()[0].error, "");
  EXPECT_EQ(Update(), 0u);
}

TEST_F(RepositoryTest, NewProfilesComeWithoutTheWeights) {
  folder_.AddModel("sbm", "m", 1);
  Update();
  const auto loaded = [&] { return repository_.Resolve("m", 1).loaded; };
  const std::shared_ptr<const LoadedModel> first = loaded();
  const std::string path = folder_.path() + "/m/1/config.json";
  std::ifstream file(path);
  nlohmann::json config = nlohmann::json::parse(file);
  const auto write = [&](const nlohmann::json& profiles) {
    config["profiles"] = profiles;
    folder_.Write("m/1/config.json", config.dump());
    return Update();
  };
  config["limits"] = {{"samples", 8}};
  EXPECT_EQ(write({{"quick", {{"samples", 2}, {"default", true}}}}), 1u);
  const std::shared_ptr<const LoadedModel> second = loaded();
  EXPECT_EQ(second->model, first->model);
  EXPECT_EQ(second->costs, first->costs);
  EXPECT_EQ(second->metrics, first->metrics);
  EXPECT_EQ(second->profiles.by_name.at("quick").samples, 2u);
  EXPECT_EQ(second->profiles.limits.samples, 8u);
  EXPECT_EQ(first->profiles.by_name.count("quick"), 0u) << "requests in flight keep theirs";

  EXPECT_EQ(write({{"quick", {{"samples", 9}}}}), 1u);
  EXPECT_EQ(loaded(), second);
  EXPECT_EQ(repository_.List()[0].error, "config.json: profiles.quick.samples is 9; limits.samples is 8");
  EXPECT_EQ(write({{"quick", {{"samples", 4}}}}), 1u);
  EXPECT_EQ(loaded()->model, first->model);
  EXPECT_EQ(loaded()->profiles.by_name.at("quick").samples, 4u);
  EXPECT_EQ(repository_.List()[0].error, "");

  config["description"] = "another";
  EXPECT_EQ(write({{"quick", {{"samples", 5}}}}), 1u);
  EXPECT_NE(loaded()->model, first->model) << "another field has changed";
  EXPECT_EQ(loaded()->profiles.by_name.at("quick").samples, 5u);
}

TEST_F(RepositoryTest, NewProfilesComeWithNewWeights) {
  folder_.AddModel("sbm", "m", 1);
  Update();
  const std::shared_ptr<const LoadedModel> first = repository_.Resolve("m", 1).loaded;
  folder_.AddModel("sbm", "m", 1);
  std::ifstream file(folder_.path() + "/m/1/config.json");
  nlohmann::json config = nlohmann::json::parse(file);
  config["profiles"] = {{"quick", {{"samples", 2}}}};
  folder_.Write("m/1/config.json", config.dump());
  EXPECT_EQ(Update(), 1u);
  EXPECT_NE(repository_.Resolve("m", 1).loaded->model, first->model);
  EXPECT_EQ(repository_.Resolve("m", 1).loaded->profiles.by_name.count("quick"), 1u);
}

TEST_F(RepositoryTest, BrokenModelIsFailedWithTheReasonAndNoPath) {
  folder_.AddModel("sbm", "good", 1);
  folder_.AddModel("sbm", "bad", 1);
  folder_.Write("bad/1/config.json", "{\"task\": \"sequence-classification\", \"vocab_sise\": 3}");
  Update();
  EXPECT_TRUE(repository_.settled());
  EXPECT_TRUE(repository_.Resolve("good", 0).status.ok());
  const absl::Status status = repository_.Resolve("bad", 0).status;
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_NE(status.message().find("config.json: hidden_size is missing"), absl::string_view::npos) << status;
  EXPECT_EQ(status.message().find(folder_.path()), absl::string_view::npos) << status;
}

TEST_F(RepositoryTest, RemovedVersionIsNotFoundAndLivesOnForItsRequests) {
  folder_.AddModel("sbm", "m", 1);
  folder_.AddModel("sbm", "m", 2);
  Update();
  std::shared_ptr<const LoadedModel> in_use = repository_.Resolve("m", 0).loaded;
  EXPECT_EQ(in_use->version, 2);
  std::filesystem::remove_all(folder_.path() + "/m/2");
  EXPECT_EQ(Update(), 0u);
  EXPECT_TRUE(absl::IsNotFound(repository_.Resolve("m", 2).status));
  EXPECT_EQ(repository_.Resolve("m", 0).loaded->version, 1);
  EXPECT_EQ(in_use->model->config().vocab_size, 40);
  const auto shown = [&](const char* version) { return metrics_.Render().find(version) != std::string::npos; };
  EXPECT_TRUE(shown(R"(version="2")"));
  in_use.reset();
  EXPECT_TRUE(shown(R"(version="2")")) << "the last page";
  EXPECT_FALSE(shown(R"(version="2")"));
  EXPECT_TRUE(shown(R"(version="1")"));
}

TEST_F(RepositoryTest, VersionThatLeavesWhileItLoadsLeavesNoSeries) {
  folder_.AddModel("sbm", "m", 1);
  const std::vector<LoadJob> jobs = repository_.Scan().value();
  ASSERT_EQ(jobs.size(), 1u);
  std::filesystem::remove_all(folder_.path() + "/m");
  ASSERT_TRUE(repository_.Scan().ok());
  repository_.Load(jobs[0], TestBackend());
  metrics_.Render();
  EXPECT_EQ(metrics_.Render().find(R"(model="m")"), std::string::npos);
}

TEST_F(RepositoryTest, ModelWhoseFolderCannotBeReadGoesOn) {
  folder_.AddModel("sbm", "m", 1);
  folder_.AddModel("sbm", "other", 1);
  Update();
  const std::shared_ptr<const LoadedModel> loaded = repository_.Resolve("m", 1).loaded;
  ASSERT_NE(loaded, nullptr);
  const std::filesystem::path model = folder_.path() + "/m";
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(model, std::filesystem::perms::none);
  const bool root = geteuid() == 0;
  if (root) setfsuid(65534);  // this thread may not override permissions any more
  std::error_code denied;
  std::filesystem::directory_iterator probe(model, denied);
  const absl::StatusOr<std::vector<LoadJob>> jobs = repository_.Scan();
  if (root) setfsuid(0);
  std::filesystem::permissions(model, std::filesystem::perms::owner_all);
  if (!denied) GTEST_SKIP() << "this user may read everything";
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  EXPECT_EQ(jobs->size(), 0u);
  EXPECT_EQ(repository_.Resolve("m", 1).loaded, loaded);
  EXPECT_EQ(Update(), 0u);
}

TEST_F(RepositoryTest, EntriesThatAreNotModelsAreLeftAlone) {
  folder_.AddModel("sbm", "m", 1);
  folder_.Write("README", "text");
  folder_.Write(".git/1/config.json", "{}");
  folder_.Write("Upper/1/config.json", "{}");
  folder_.Write("m/01/config.json", "{}");
  folder_.Write("m/-1/config.json", "{}");
  folder_.Write("m/latest/config.json", "{}");
  folder_.Write("m/9223372036854775808/config.json", "{}");
  EXPECT_EQ(Update(), 1u);
  EXPECT_EQ(repository_.List().size(), 1u);
}

TEST_F(RepositoryTest, EmptyFolderIsFineAndAMissingOneIsNot) {
  EXPECT_EQ(Update(), 0u);
  EXPECT_TRUE(repository_.settled());
  Repository missing({folder_.path() + "/missing"}, metrics_);
  EXPECT_TRUE(absl::IsNotFound(missing.Scan().status()));
}

TEST_F(RepositoryTest, UnknownModelGetsTheNearestNameOrAllOfFew) {
  EXPECT_EQ(repository_.Resolve("sentiment", 0).status.message(),
            "model \"sentiment\" is not in the repository, which is empty");
  for (const char* name : {"sentiment", "long"}) folder_.AddModel("sbm", name, 1);
  folder_.AddModel("sbm", "long", 4);
  ASSERT_EQ(repository_.Scan().value().size(), 3u);
  EXPECT_EQ(repository_.Resolve("sentimnet", 0).status.message(),
            "model \"sentimnet\" is not in the repository; did you mean sentiment?");
  EXPECT_EQ(repository_.Resolve("bert", 0).status.message(),
            "model \"bert\" is not in the repository; it has long, sentiment");
  EXPECT_EQ(repository_.Resolve("long", 2).status.message(),
            "model \"long\" version 2 is not in the repository; it has 1, 4");
  for (int i = 0; i < 19; ++i) folder_.Write("other-model-" + std::to_string(i) + "/1/config.json", "{}");
  ASSERT_TRUE(repository_.Scan().ok());
  EXPECT_EQ(repository_.Resolve("bert", 0).status.message(), "model \"bert\" is not in the repository");
}

TEST_F(RepositoryTest, ConfigOfHuggingFaceIsRecognised) {
  folder_.Write("bert/1/config.json", R"({"architectures": ["T5Model"], "model_type": "t5", "hidden_size": 8})");
  Update();
  EXPECT_EQ(repository_.List()[0].error, "config.json: model_type is \"t5\"; served: " + hugging_face::FamilyNames() +
                                             "; docs/convert.md#hugging-face says what else can be converted");
}

TEST_F(RepositoryTest, NamesFromFilesKeepErrorsOnOneLine) {
  std::filesystem::copy(tests::TestdataFolder() + "_hugging_face/bert_regression", folder_.path() + "/m",
                        std::filesystem::copy_options::recursive);
  folder_.Write("m/1/model.safetensors.index.json",
                R"({"weight_map": {"classifier.weight": "a\nb\u001b[2J.safetensors"}})");
  Update();
  EXPECT_EQ(repository_.List()[0].error, "a\\nb\\x1b[2J.safetensors: no such file");
}

TEST_F(RepositoryTest, R1toR5NamesAndVersionsAreChecked) {
  folder_.AddModel("sbm", "m", 1);
  Update();
  const auto error = [&](const std::string& name, int64_t version) {
    return repository_.Resolve(name, version).status;
  };
  EXPECT_EQ(error("", 0), FieldError("model", "is empty; give the name of a model (ListModels lists them)"));
  EXPECT_EQ(error("../x", 0),
            FieldError("model", "is \"../x\"; allowed are 1 to 64 of a-z 0-9 _ . -, the first a letter or digit"));
  EXPECT_LT(error(std::string(1 << 20, 'A'), 0).message().size(), 300u);
  const absl::Status negative = FieldError("version", "is -1; allowed are 0 (the latest) and more");
  for (const char* name : {"m", "unknown"}) EXPECT_EQ(error(name, -1), negative);
  EXPECT_EQ(repository_.Resolve("m", -1).loaded, nullptr);
  EXPECT_EQ(repository_.Resolve("m", -1).metrics, repository_.Resolve("m", 0).metrics);
  EXPECT_TRUE(absl::IsNotFound(error("m", std::numeric_limits<int64_t>::max())));
}

TEST(ModelNameTest, AllowListHolds) {
  for (const char* good : {"a", "0", "sbm-lra_text.v2", "a.."}) EXPECT_TRUE(IsModelName(good)) << good;
  EXPECT_TRUE(IsModelName(std::string(64, 'a')));
  EXPECT_FALSE(IsModelName(std::string(65, 'a')));
  for (const char* bad :
       {"", " ", ".", "..", "../x", "a/b", "/etc", "%2e%2e", "..\\", "A", "-a", "_a", "a b", "a\n", "\uff0e\uff0e"}) {
    EXPECT_FALSE(IsModelName(bad)) << bad;
  }
  EXPECT_FALSE(IsModelName(std::string("a\0b", 3)));
}

TEST_F(RepositoryTest, LoadsAreCountedByTheirResult) {
  folder_.AddModel("sbm", "m", 1);
  folder_.AddModel("sbm", "m", 2);
  folder_.Write("m/2/config.json", "{");
  EXPECT_EQ(Update(), 2u);
  const std::string text = metrics_.Render();
  const auto counts = [&](const std::string& labels, int count) {
    return text.find("edgewise_" + labels + "} " + std::to_string(count) + "\n") != std::string::npos;
  };
  EXPECT_TRUE(counts(R"(model_loads_total{model="m",result="ok",version="1")", 1));
  EXPECT_TRUE(counts(R"(model_loads_total{model="m",result="error",version="1")", 0));
  EXPECT_TRUE(counts(R"(model_loads_total{model="m",result="ok",version="2")", 0));
  EXPECT_TRUE(counts(R"(model_loads_total{model="m",result="error",version="2")", 1));
  EXPECT_TRUE(counts(R"(model_ready{model="m",version="1")", 1));
  EXPECT_TRUE(counts(R"(model_ready{model="m",version="2")", 0));
}

}  // namespace
}  // namespace edgewise::server
