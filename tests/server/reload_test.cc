// When a version is loaded again: what was read of it has changed, or what was looked for has come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "model/kinds/kind.h"
#include "server/models/repository.h"
#include "tests/server/test_models.h"

namespace edgewise::server {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

class ReloadTest : public ::testing::Test {
 protected:
  // Scans and loads what there is to load; returns how many that were.
  size_t Update(Scanning scanning = Scanning::kAsked) {
    std::vector<LoadJob> jobs = repository_.Scan(scanning).value();
    for (const LoadJob& job : jobs) repository_.Load(job, TestBackend());
    return jobs.size();
  }
  size_t Poll() { return Update(Scanning::kPoll); }
  std::string Path(const std::string& file) const { return folder_.path() + "/" + file; }
  // Of tests/testdata_hugging_face.
  void AddHuggingFace(const std::string& name, const std::string& as) const {
    fs::create_directories(Path(as));
    fs::copy(tests::TestdataFolder() + "_hugging_face/" + name + "/1", Path(as), fs::copy_options::recursive);
  }
  ModelStatus Only() const { return repository_.List().at(0); }

  TestFolder folder_;
  Metrics metrics_;
  Repository repository_{{folder_.path()}, metrics_};
};

TEST_F(ReloadTest, AChangedFileOfAHuggingFaceFolderLoadsItAgain) {
  const std::string from = tests::TestdataFolder() + "_hugging_face/";
  const auto options = std::filesystem::copy_options::recursive;
  for (const char* name : {"bert_regression", "mpnet_sentence"}) {
    std::filesystem::copy(from + name, folder_.path() + "/" + name, options);
  }
  EXPECT_EQ(Update(), 2u);
  for (const ModelStatus& model : repository_.List()) EXPECT_EQ(model.state, ModelState::kReady) << model.error;
  EXPECT_EQ(Update(), 0u);
  const auto touch = [&](const std::string& file) {
    std::ofstream(folder_.path() + "/" + file, std::ios::app) << " ";
    return Update();
  };
  EXPECT_EQ(touch("mpnet_sentence/1/modules.json"), 1u);
  EXPECT_EQ(touch("mpnet_sentence/1/1_Pooling/config.json"), 1u);
  EXPECT_EQ(touch("mpnet_sentence/1/config.json"), 1u);
  EXPECT_EQ(touch("bert_regression/1/model.safetensors.index.json"), 1u);
  for (const ModelStatus& model : repository_.List()) EXPECT_EQ(model.error, "");
  EXPECT_EQ(touch("bert_regression/1/model-00002-of-00002.safetensors"), 1u);
  EXPECT_THAT(repository_.List()[0].error, ::testing::HasSubstr("model-00002-of-00002.safetensors: the header"));
}

// The names of the files that somebody opens in a folder, or in a folder in it, while this lives.
class Opened {
 public:
  explicit Opened(const std::string& folder) : descriptor_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    Watch(folder, "");
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.is_directory()) Watch(entry.path(), entry.path().filename().string() + "/");
    }
  }
  ~Opened() { close(descriptor_); }

  std::set<std::string> Files() {
    std::set<std::string> files;
    alignas(inotify_event) char events[1 << 16];
    for (ssize_t size; (size = read(descriptor_, events, sizeof events)) > 0;) {
      for (const char* at = events; at < events + size;) {
        const auto* event = reinterpret_cast<const inotify_event*>(at);
        if ((event->mask & IN_ISDIR) == 0) files.insert(folders_[event->wd] + event->name);
        at += sizeof *event + event->len;
      }
    }
    return files;
  }

 private:
  void Watch(const std::string& path, const std::string& name) {
    folders_[inotify_add_watch(descriptor_, path.c_str(), IN_OPEN)] = name;
  }

  const int descriptor_;
  std::map<int, std::string> folders_;
};

// Whatever the loader reads: a template of a chat, a folder of any name that modules.json names.
TEST_F(ReloadTest, EveryFileThatIsReadIsReadAgainWhenItChanges) {
  const std::string from = tests::TestdataFolder();
  for (const char* name : {"_hugging_face/bert_regression", "_hugging_face/mpnet_sentence", "_chat/llama3",
                           "_hugging_face/bert_masked_untied", "_images/vit_classes"}) {
    const std::string folder = folder_.path() + "/m/1";
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    std::filesystem::copy(from + name + "/1", folder, std::filesystem::copy_options::recursive);
    if (std::filesystem::exists(folder + "/1_Pooling")) {
      std::filesystem::rename(folder + "/1_Pooling", folder + "/pool");
      std::ifstream file(folder + "/modules.json");
      nlohmann::json modules = nlohmann::json::parse(file);
      modules[1]["path"] = "pool";
      folder_.Write("m/1/modules.json", modules.dump());
    }
    std::set<std::string> files;
    {
      Opened opened(folder);
      ASSERT_EQ(Update(), 1u) << name;
      files = opened.Files();
    }
    ASSERT_EQ(repository_.List()[0].state, ModelState::kReady) << repository_.List()[0].error;
    EXPECT_GE(files.size(), 2u) << name;
    for (const std::string& file : files) {
      EXPECT_EQ(Update(), 0u);
      const std::filesystem::path path = folder + "/" + file;
      std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
      EXPECT_EQ(Update(), 1u) << name << "/1/" << file;
    }
  }
}

TEST_F(ReloadTest, AVersionThatLackedAFileIsTriedWhenItComes) {
  fs::create_directories(Path("m/1"));
  EXPECT_EQ(Poll(), 1u);
  EXPECT_EQ(Only().error, "config.json: no such file; the folder is empty");
  EXPECT_EQ(Poll(), 0u);
  folder_.Write("m/1/other", "");
  EXPECT_EQ(Poll(), 0u) << "nobody looked for it";
  const fs::path from = tests::TestdataFolder() + "/sbm/1";
  fs::copy_file(from / "config.json", Path("m/1/config.json"));
  EXPECT_EQ(Poll(), 1u);
  EXPECT_EQ(Only().error, "model.safetensors: no such file");
  EXPECT_EQ(Poll(), 0u);
  fs::copy_file(from / "model.safetensors", Path("m/1/model.safetensors"));
  EXPECT_EQ(Poll(), 1u);
  EXPECT_EQ(Only().state, ModelState::kReady);
  EXPECT_EQ(Poll(), 0u);
}

TEST_F(ReloadTest, AVersionThatMayNotBeReadIsTriedWhenItMay) {
  folder_.AddModel("sbm", "m", 1);
  fs::permissions(folder_.path(), fs::perms(0755));
  fs::permissions(Path("m/1/config.json"), fs::perms::none);
  const bool root = geteuid() == 0;
  if (root) setfsuid(65534);  // this thread may not override permissions any more
  const bool denied = !std::ifstream(Path("m/1/config.json"));
  Poll();
  const std::string error = Only().error;
  const size_t again = Poll();
  if (root) setfsuid(0);
  if (!denied) GTEST_SKIP() << "this user may read everything";
  EXPECT_EQ(error, "config.json: cannot be opened: Permission denied");
  EXPECT_EQ(again, 0u);
  fs::permissions(Path("m/1/config.json"), fs::perms::owner_all);
  EXPECT_EQ(Poll(), 1u);
  EXPECT_EQ(Only().state, ModelState::kReady);
}

// What is optional comes last, after the first load that could do without it.
TEST_F(ReloadTest, AFolderThatIsCopiedStepByStepEndsAsTheWholeModel) {
  const std::string from = tests::TestdataFolder() + "_hugging_face/mpnet_sentence/1/";
  fs::create_directories(Path("m/1"));
  Poll();
  fs::copy_file(from + "config.json", Path("m/1/config.json"));
  Poll();
  fs::copy_file(from + "model.safetensors", Path("m/1/model.safetensors"));
  const uintmax_t bytes = fs::file_size(Path("m/1/model.safetensors"));
  fs::resize_file(Path("m/1/model.safetensors"), bytes / 2);
  Poll();
  EXPECT_EQ(Only().state, ModelState::kFailed);
  fs::remove(Path("m/1/model.safetensors"));
  fs::copy_file(from + "model.safetensors", Path("m/1/model.safetensors"));
  Poll();
  ASSERT_EQ(Only().state, ModelState::kReady) << Only().error;
  EXPECT_FALSE(Only().loaded->model->config().normalize);
  for (const auto& entry : fs::directory_iterator(from)) {
    const fs::path to = Path("m/1") / entry.path().filename();
    if (!fs::exists(to)) fs::copy(entry.path(), to, fs::copy_options::recursive);
    Poll();
  }
  EXPECT_EQ(Poll(), 0u);
  EXPECT_EQ(Only().error, "");
  AddHuggingFace("mpnet_sentence", "whole/1");
  Poll();
  const ModelConfig& copied = repository_.Resolve("m", 1).loaded->model->config();
  const ModelConfig& whole = repository_.Resolve("whole", 1).loaded->model->config();
  EXPECT_EQ(copied.normalize, whole.normalize);
  EXPECT_EQ(copied.pooling, whole.pooling);
  EXPECT_EQ(copied.max_text_tokens, whole.max_text_tokens);
  EXPECT_EQ(copied.tokenizer.kind, whole.tokenizer.kind);
  EXPECT_TRUE(whole.normalize);
}

TEST_F(ReloadTest, AFileThatChangesWhileTheModelIsReadIsNoticedAndReadAgain) {
  folder_.AddModel("sbm", "m", 1);
  const std::vector<LoadJob> jobs = repository_.Scan().value();
  ASSERT_EQ(jobs.size(), 1u);
  bool changed = false;
  repository_.Load(jobs[0], TestBackend(), [&](const auto& work) {
    if (!std::exchange(changed, true)) folder_.AddModel("dense", "m", 1);
    return work();
  });
  ASSERT_TRUE(changed);
  EXPECT_EQ(Only().state, ModelState::kFailed);
  EXPECT_THAT(Only().error, ::testing::StartsWith("a file changed while the model was read; SIGHUP"));
  EXPECT_EQ(Poll(), 1u);
  EXPECT_EQ(Only().error, "");
  EXPECT_EQ(AttentionName(Only().loaded->model->config().attention), "dense");
  EXPECT_EQ(Poll(), 0u);
}

TEST_F(ReloadTest, AFileThatIsWrittenWithTheOldSizeAndPutInPlaceIsRead) {
  folder_.AddModel("sbm", "m", 1);
  Update();
  const std::shared_ptr<const LoadedModel> old = Only().loaded;
  const fs::path weights = Path("m/1/model.safetensors"), fresh = Path("m/1/fresh");
  fs::copy_file(weights, fresh);
  fs::last_write_time(fresh, fs::last_write_time(weights));
  fs::rename(fresh, weights);
  EXPECT_EQ(Poll(), 1u);
  EXPECT_NE(Only().loaded, old);
}

TEST_F(ReloadTest, ProfilesOfAHuggingFaceFolderComeWithoutTheWeightsAndItsOtherFilesWithThem) {
  AddHuggingFace("bert_sequence", "m/1");
  Update();
  const std::shared_ptr<const Model> model = Only().loaded->model;
  std::ifstream file(Path("m/1/config.json"));
  nlohmann::json config = nlohmann::json::parse(file);
  config["profiles"] = {{"quick", {{"samples", 2}}}};
  folder_.Write("m/1/config.json", config.dump());
  EXPECT_EQ(Poll(), 1u);
  EXPECT_EQ(Only().loaded->model, model);
  EXPECT_EQ(Only().loaded->profiles.by_name.count("quick"), 1u);
  EXPECT_EQ(Poll(), 0u);
  config["profiles"] = {{"quick", {{"samples", 3}}}};
  folder_.Write("m/1/config.json", config.dump());
  folder_.Write("m/1/tokenizer_config.json", "{}");
  EXPECT_EQ(Poll(), 1u);
  EXPECT_NE(Only().loaded->model, model);
  EXPECT_EQ(Only().loaded->profiles.by_name.at("quick").samples, 3u);
  EXPECT_EQ(Poll(), 0u);
}

// As SIGHUP does, beside the thread that loads.
TEST_F(ReloadTest, AScanDuringALoadIsDueWhenTheLoadHasEndedAndThenDoesNothingTwice) {
  folder_.AddModel("sbm", "m", 1);
  const std::vector<LoadJob> jobs = repository_.Scan().value();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_THAT(repository_.Scan().value(), IsEmpty()) << "it has not begun";
  std::vector<LoadJob> during;
  repository_.Load(jobs[0], TestBackend(), [&](const auto& work) {
    const std::vector<LoadJob> found = repository_.Scan().value();
    during.insert(during.end(), found.begin(), found.end());
    return work();
  });
  ASSERT_EQ(during.size(), 1u);
  EXPECT_EQ(Only().state, ModelState::kReady);
  const std::shared_ptr<const LoadedModel> loaded = Only().loaded;
  repository_.Load(during[0], TestBackend());
  EXPECT_EQ(Only().loaded, loaded) << "its files are those that were read";
  EXPECT_TRUE(repository_.settled());
  EXPECT_EQ(Update(), 0u);
}

}  // namespace
}  // namespace edgewise::server
