// Where models may lie: links of every layout that people have, folders that are given a name, and what is said of
// folders that are no models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/models/folder.h"
#include "server/models/repository.h"
#include "tests/server/test_models.h"

namespace edgewise::server {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Puts a link in the place of what is at `path`, at once.
void Relink(const fs::path& target, const fs::path& path) {
  const fs::path fresh = path.string() + ".new";
  fs::create_symlink(target, fresh);
  fs::rename(fresh, path);
}

// Writes a model with this description into a folder.
void WriteModelFiles(const fs::path& folder, const std::string& description) {
  fs::create_directories(folder);
  const fs::path from = tests::TestdataFolder() + "/sbm/1";
  fs::copy_file(from / "model.safetensors", folder / "model.safetensors", fs::copy_options::overwrite_existing);
  std::ifstream file(from / "config.json");
  nlohmann::json config = nlohmann::json::parse(file);
  config["description"] = description;
  std::ofstream(folder / "config.json.new") << config.dump();
  fs::rename(folder / "config.json.new", folder / "config.json");
}

// A snapshot of the hub's cache: links to blobs.
void WriteSnapshot(const fs::path& cache, const std::string& hash, const std::string& description) {
  WriteModelFiles(cache / "new", description);
  fs::create_directories(cache / "blobs");
  fs::create_directories(cache / "snapshots" / hash);
  for (const char* file : {"config.json", "model.safetensors"}) {
    const std::string blob = hash + "-" + file;
    fs::rename(cache / "new" / file, cache / "blobs" / blob);
    Relink("../../blobs/" + blob, cache / "snapshots" / hash / file);
  }
  fs::remove_all(cache / "new");
}

// As kubelet writes a ConfigMap: files are links into ..data, which is a link to the folder of the last writing.
void WriteConfigMap(const fs::path& folder, const std::string& time, const std::string& description) {
  WriteModelFiles(folder / (".." + time), description);
  Relink(".." + time, folder / "..data");
  for (const char* file : {"config.json", "model.safetensors"}) Relink(fs::path("..data") / file, folder / file);
}

struct Layout {
  const char* name;
  // Makes a model with this description in `folder`, or changes the one that is there. Calls are numbered from 1.
  std::function<void(const fs::path& folder, int call, const std::string& description)> write;
  std::function<ModelSources(const std::string& folder)> sources = [](const std::string& folder) {
    return ModelSources{folder + "/models"};
  };
};

std::vector<Layout> Layouts() {
  const auto named = [](const std::string& path) {
    return [path](const std::string& folder) { return ModelSources{"", {{"m", folder + path}}}; };
  };
  return {
      {"FilesOfTheHubsCache",
       [](const fs::path& folder, int call, const std::string& description) {
         const std::string hash = "hash" + std::to_string(call);
         WriteSnapshot(folder / "cache", hash, description);
         fs::create_directories(folder / "models/m/1");
         for (const char* file : {"config.json", "model.safetensors"}) {
           Relink("../../../cache/blobs/" + hash + "-" + file, folder / "models/m/1" / file);
         }
       }},
      {"VersionThatIsASnapshot",
       [](const fs::path& folder, int call, const std::string& description) {
         const std::string hash = "hash" + std::to_string(call);
         WriteSnapshot(folder / "cache", hash, description);
         fs::create_directories(folder / "models/m");
         Relink(folder / "cache/snapshots" / hash, folder / "models/m/1");
       }},
      {"ModelThatIsALink",
       [](const fs::path& folder, int, const std::string& description) {
         WriteModelFiles(folder / "elsewhere/1", description);
         fs::create_directories(folder / "models");
         Relink("../elsewhere", folder / "models/m");
       }},
      {"ConfigMap",
       [](const fs::path& folder, int call, const std::string& description) {
         WriteConfigMap(folder / "models/m/1", "2026_11_" + std::to_string(call), description);
       }},
      {"NamedFolder",  // as KServe mounts a model
       [](const fs::path& folder, int, const std::string& description) {
         WriteModelFiles(folder / "mnt/models", description);
       },
       named("/mnt/models")},
      {"NamedConfigMap",
       [](const fs::path& folder, int call, const std::string& description) {
         WriteConfigMap(folder / "mnt/models", "2026_11_" + std::to_string(call), description);
       },
       named("/mnt/models")},
      {"NamedSnapshot",  // a blob that is written anew; nobody's cache does that
       [](const fs::path& folder, int, const std::string& description) {
         WriteSnapshot(folder / "cache", "hash", description);
       },
       named("/cache/snapshots/hash")},
      {"NamedLink",
       [](const fs::path& folder, int call, const std::string& description) {
         const std::string release = "release" + std::to_string(call);
         WriteModelFiles(folder / release, description);
         Relink(release, folder / "current");
       },
       named("/current")},
  };
}

class LayoutTest : public ::testing::TestWithParam<Layout> {};

TEST_P(LayoutTest, ServesAndIsLoadedAgainWhenWhatItLeadsToChanges) {
  TestFolder folder;
  Metrics metrics;
  GetParam().write(folder.path(), 1, "one");
  Repository repository(GetParam().sources(folder.path()), metrics);
  for (int call = 1; call <= 3; ++call) {
    const std::string description = "number " + std::to_string(call);
    if (call > 1) GetParam().write(folder.path(), call, description);
    const std::vector<LoadJob> jobs = repository.Scan(Scanning::kPoll).value();
    ASSERT_EQ(jobs.size(), 1u) << call;
    repository.Load(jobs[0], TestBackend());
    ASSERT_EQ(repository.List().size(), 1u);
    EXPECT_EQ(repository.List()[0].error, "");
    const Resolved resolved = repository.Resolve("m", 1);
    ASSERT_TRUE(resolved.status.ok()) << resolved.status;
    EXPECT_EQ(resolved.loaded->model->config().description, call == 1 ? "one" : description);
    EXPECT_THAT(repository.Scan(Scanning::kPoll).value(), IsEmpty());
    EXPECT_THAT(repository.Scan(Scanning::kAsked).value(), IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutTest, ::testing::ValuesIn(Layouts()),
                         [](const auto& test) { return std::string(test.param.name); });

class SourcesTest : public ::testing::Test {
 protected:
  // What is said about the folder's entries: "entry: why".
  std::vector<std::string> Said(const ModelSources& sources) const {
    std::vector<std::string> said;
    const FolderList list = ListModels(sources).value();
    for (const Remark& remark : list.remarks) {
      said.push_back(remark.event + ": " + remark.subject.second + ": " + remark.detail.second);
    }
    return said;
  }
  std::vector<std::string> Said() const { return Said({folder_.path()}); }
  std::string Path(const std::string& entry) const { return folder_.path() + "/" + entry; }
  void Update(Repository& repository) {
    const std::vector<LoadJob> jobs = repository.Scan(Scanning::kPoll).value();
    for (const LoadJob& job : jobs) repository.Load(job, TestBackend());
  }

  TestFolder folder_;
  Metrics metrics_;
};

TEST_F(SourcesTest, FoldersOfToolsAndFileSystemsArePassedOverInSilence) {
  folder_.AddModel("sbm", "m", 1);
  for (const char* file : {".git/config.json", "..data/1/config.json", ".cache/1/config.json", "lost+found/1/x",
                           "m/.cache/x", "m/..2026/config.json", "m/lost+found/x", "README.md", "m/notes.txt"}) {
    folder_.Write(file, "{}");
  }
  fs::create_symlink("README.md", Path("link"));
  EXPECT_THAT(Said(), IsEmpty());
  EXPECT_EQ(ListModels({folder_.path()})->versions.size(), 1u);
}

TEST_F(SourcesTest, AFolderThatIsNotAModelNameIsToldOneAndTheFlagThatServesIt) {
  folder_.AddModel("sbm", "m", 1);
  folder_.AddModel("sbm", "All-MiniLM L6", 2);
  folder_.AddModel("sbm", "All-MiniLM L6", 10);
  const std::string rule = "not a model name, which is 1 to 64 of a-z 0-9 _ . -, the first a letter or digit; ";
  const auto ignored = [&](const std::string& entry, const std::string& remedy) {
    return std::vector<std::string>{"repository entry ignored: " + entry + ": " + rule + remedy};
  };
  EXPECT_EQ(Said(), ignored("All-MiniLM L6", "rename it, such as to all-minilm-l6, or give --model=all-minilm-l6=" +
                                                 Path("All-MiniLM L6/10")));
  fs::remove_all(Path("All-MiniLM L6"));
  folder_.Write("_Empty\xc3\xa4\xc3\xa4.x/README", "");
  EXPECT_EQ(Said(), ignored("_Empty\xc3\xa4\xc3\xa4.x", "rename it, such as to empty-.x"));
  fs::remove_all(Path("_Empty\xc3\xa4\xc3\xa4.x"));
  folder_.Write("models--org--E5_Small/snapshots/ab12/config.json", "{}");
  EXPECT_EQ(Said(), ignored("models--org--E5_Small", "rename it, such as to e5_small, or give --model=e5_small=" +
                                                         Path("models--org--E5_Small/snapshots/ab12")));
  fs::remove_all(Path("models--org--E5_Small"));
  folder_.Write("\xe6\xa8\xa1/config.json", "{}");
  EXPECT_EQ(Said(),
            ignored("\xe6\xa8\xa1", "rename it, such as to model, or give --model=model=" + Path("\xe6\xa8\xa1")));
}

TEST_F(SourcesTest, ARepositoryThatIsAModelIsToldTheFlagThatServesIt) {
  WriteModelFiles(Path("Bert"), "");
  WriteModelFiles(Path("hub/models--org--Tiny/snapshots/ab"), "");
  WriteModelFiles(Path("m/3"), "");
  const auto remedy = [&](const std::string& repository) {
    const std::string said = Said({Path(repository)}).back();
    return said.substr(said.rfind(": this") + 2);
  };
  EXPECT_EQ(remedy("Bert"), "this is a model: give --model=bert=" + Path("Bert") +
                                ", or put it into Bert/1/ and give the folder above Bert");
  EXPECT_EQ(remedy("Bert/"), remedy("Bert"));
  EXPECT_EQ(remedy("m/3"), "this is a version of a model: give the folder above m, or --model=m=" + Path("m/3"));
  EXPECT_EQ(remedy("hub/models--org--Tiny"),
            "this is a model: give --model=tiny=" + Path("hub/models--org--Tiny/snapshots/ab"));
  WriteModelFiles(Path("two/models--org--Tiny/snapshots/ab"), "");
  WriteModelFiles(Path("two/models--org--Tiny/snapshots/ff"), "");
  folder_.Write("two/models--org--Tiny/refs/main", "ab");
  EXPECT_EQ(remedy("two/models--org--Tiny"),
            "this is a model: give --model=tiny=" + Path("two/models--org--Tiny/snapshots/ab"))
      << "which refs/main names";
  EXPECT_EQ(remedy("hub/models--org--Tiny/snapshots/ab"),
            "this is a model: give --model=tiny=" + Path("hub/models--org--Tiny/snapshots/ab") +
                ", or put it into ab/1/ and give the folder above ab");
  EXPECT_EQ(remedy("m"), "this is a model: give the folder above m, or --model=m=" + Path("m/3"));
}

TEST_F(SourcesTest, AModelWithoutAVersionIsToldWhereItsFilesBelong) {
  folder_.Write("flat/config.json", "{}");
  folder_.Write("empty/README", "");
  folder_.Write("models--org--tiny/snapshots/ab/config.json", "{}");
  const std::string event = "model without a version: ";
  EXPECT_THAT(
      Said(),
      ::testing::ElementsAre(
          event + "empty: put config.json and model.safetensors into empty/1/",
          event + "flat: put flat/config.json and model.safetensors into flat/1/, or give --model=flat=" + Path("flat"),
          event + "models--org--tiny: this is a model of a hub's cache: give --model=tiny=" +
              Path("models--org--tiny/snapshots/ab"),
          HasSubstr("repository without a model: ")));
}

TEST_F(SourcesTest, ALinkThatLeadsNowhereIsAnErrorAndServesOnceItLeadsSomewhere) {
  fs::create_directories(Path("models/m"));
  fs::create_symlink(Path("later"), Path("models/m/1"));
  fs::create_symlink("2", Path("models/m/2"));
  fs::create_symlink("loop", Path("models/loop"));
  Repository repository({Path("models")}, metrics_);
  Update(repository);
  const std::vector<ModelStatus> list = repository.List();
  ASSERT_EQ(list.size(), 2u);
  for (const ModelStatus& version : list) {
    EXPECT_EQ(version.state, ModelState::kFailed);
    EXPECT_EQ(version.error, "the folder of the version is a symbolic link that leads nowhere or in a circle");
  }
  EXPECT_THAT(Said({Path("models")}),
              ::testing::ElementsAre("model folder not read: loop: Too many levels of symbolic links"));
  EXPECT_THAT(repository.Scan(Scanning::kPoll).value(), IsEmpty());
  WriteModelFiles(Path("later"), "");
  Update(repository);
  EXPECT_EQ(repository.Resolve("m", 1).status, absl::OkStatus());
}

TEST_F(SourcesTest, WhatIsNoFileInPlaceOfOneIsAnError) {
  WriteModelFiles(Path("m/1"), "");
  fs::remove(Path("m/1/config.json"));
  const std::string config = Path("m/1/config.json");
  Repository repository({folder_.path()}, metrics_);
  const auto error = [&] {
    Update(repository);
    fs::remove_all(config);
    return repository.List()[0].error;
  };
  fs::create_directory(config);
  EXPECT_EQ(error(), "config.json: is a folder; a file is expected");
  ASSERT_EQ(mkfifo(config.c_str(), 0600), 0);
  EXPECT_EQ(error(), "config.json: is not a regular file");
  fs::create_symlink("/dev/zero", config);
  EXPECT_EQ(error(), "config.json: is not a regular file");
  fs::create_symlink("config.json", config);
  EXPECT_EQ(error(), "config.json: is a symbolic link that leads in a circle");
}

TEST_F(SourcesTest, WhatTheServerIsStartedWithIsChecked) {
  WriteModelFiles(Path("bert"), "");
  folder_.AddModel("sbm", "models/m", 1);
  const auto error = [](const ModelSources& sources) { return std::string(CheckSources(sources).message()); };
  EXPECT_EQ(error({Path("models"), {{"bert", Path("bert")}, {"other", Path("bert")}}}), "");
  EXPECT_EQ(error({"", {{"Bert", "bert"}}}),
            "--model=Bert=bert: \"Bert\" is not a model name, which is 1 to 64 of a-z 0-9 _ . -, the first a letter or "
            "digit; such as --model=bert=bert");
  EXPECT_EQ(error({"", {{"bert", Path("bert")}, {"bert", Path("models")}}}),
            "--model=bert=" + Path("models") + ": another --model has that name too; each needs its own");
  EXPECT_EQ(error({"", {{"bert", Path("brt")}}}), "--model=bert=" + Path("brt") +
                                                      ": No such file or directory; give the folder that has the "
                                                      "model's config.json");
  EXPECT_TRUE(absl::IsNotFound(CheckSources({"", {{"bert", Path("brt")}}})));
  EXPECT_EQ(error({"", {{"bert", Path("bert/config.json")}}}), "--model=bert=" + Path("bert/config.json") +
                                                                   ": is not a folder; give the folder that has the "
                                                                   "model's config.json");
  for (const std::string folder : {"models/m", "hub/models--org--tiny"}) {
    const std::string files = folder + (folder == "models/m" ? "/1" : "/snapshots/ab");
    folder_.Write(files + "/config.json", "{}");
    EXPECT_EQ(error({"", {{"bert", Path(folder)}}}),
              "--model=bert=" + Path(folder) + ": the model's files lie below; give --model=bert=" + Path(files));
  }
  fs::create_directory(Path("empty"));
  EXPECT_EQ(error({"", {{"bert", Path("empty")}}}), "") << "files may come";
  EXPECT_EQ(error({Path("models"), {{"m", Path("bert")}}}),
            "--model=m: the repository " + Path("models") + " has a model of that name too; give it another name");
}

TEST_F(SourcesTest, ANamedFolderServesBesideARepositoryThatMayNotTakeItsName) {
  WriteModelFiles(Path("bert"), "named");
  folder_.AddModel("sbm", "models/m", 1);
  const ModelSources sources{Path("models"), {{"bert", Path("bert")}}};
  Repository repository(sources, metrics_);
  Update(repository);
  EXPECT_EQ(repository.List().size(), 2u);
  const std::shared_ptr<const LoadedModel> named = repository.Resolve("bert", 0).loaded;
  ASSERT_NE(named, nullptr);
  EXPECT_EQ(named->version, 1);
  folder_.AddModel("sbm", "models/bert", 1);
  folder_.AddModel("sbm", "models/bert", 2);
  Update(repository);
  EXPECT_EQ(repository.Resolve("bert", 0).loaded, named);
  EXPECT_THAT(Said(sources),
              ::testing::ElementsAre("repository entry ignored: bert: --model has a model of that name"));
}

TEST_F(SourcesTest, ANamedFolderThatGoesKeepsItsModel) {
  WriteModelFiles(Path("bert"), "one");
  const ModelSources sources{"", {{"m", Path("bert")}}};
  Repository repository(sources, metrics_);
  Update(repository);
  fs::rename(Path("bert"), Path("gone"));
  Update(repository);
  EXPECT_EQ(repository.Resolve("m", 1).status, absl::OkStatus());
  EXPECT_THAT(Said(sources), ::testing::ElementsAre("model folder not read: m: No such file or directory"));
  WriteModelFiles(Path("bert"), "two");
  Update(repository);
  EXPECT_EQ(repository.Resolve("m", 1).loaded->model->config().description, "two");
}

// Names of files and fields may hold the letters of the repository's path.
TEST_F(SourcesTest, ErrorsKeepTheLettersThatARepositoryIsCalled) {
  folder_.Write("e/m/1/config.json", R"({"task": "regression", "feature_size": 8, "hidden_sise": 3})");
  const fs::path before = fs::current_path();
  fs::current_path(folder_.path());
  Repository repository({"e"}, metrics_);
  Update(repository);
  fs::current_path(before);
  EXPECT_THAT(repository.List()[0].error, HasSubstr("config.json: hidden_size is missing"));
}

}  // namespace
}  // namespace edgewise::server
