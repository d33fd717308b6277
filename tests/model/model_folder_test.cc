#include "model/checkpoint/model_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model/model_builder.h"

namespace edgewise::testing {
namespace {

using ::testing::HasSubstr;

class ModelFolderTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  void Write(const std::string& name, const std::string& text) const { WriteFile(Path(name), text); }
  void Link(const std::string& target, const std::string& name) const {
    ASSERT_EQ(symlink(target.c_str(), Path(name).c_str()), 0);
  }
  std::string ErrorOf(const std::string& name) const {
    return std::string(ModelFolder(folder_.path()).Read(name, 100).status().message());
  }

  const TemporaryFolder folder_;
};

TEST_F(ModelFolderTest, LinksAreFollowedToFilesOfOtherFolders) {
  ASSERT_EQ(mkdir(Path("blobs").c_str(), 0700), 0);
  ASSERT_EQ(mkdir(Path("snapshot").c_str(), 0700), 0);
  Write("blobs/abc", "text");
  Link("../blobs/abc", "snapshot/config.json");
  Link("snapshot", "version");
  ModelFolder files(Path("version"));
  EXPECT_EQ(*files.Read("config.json", 4), "text");
  EXPECT_EQ(files.seen().at("config.json"), StateOf(Path("blobs/abc")));
}

TEST_F(ModelFolderTest, WhatIsNoFileIsNamed) {
  Link("circle", "circle");
  Link("gone", "dangling");
  ASSERT_EQ(mkdir(Path("folder").c_str(), 0700), 0);
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  Link("/dev/zero", "device");
  Write("pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n");
  EXPECT_THAT(ErrorOf("circle"), HasSubstr("leads in a circle"));
  EXPECT_THAT(ErrorOf("dangling"), HasSubstr("does not exist; cp -rL copies"));
  EXPECT_THAT(ErrorOf("folder"), HasSubstr("is a folder"));
  EXPECT_THAT(ErrorOf("pipe"), HasSubstr("not a regular file"));
  EXPECT_THAT(ErrorOf("device"), HasSubstr("not a regular file"));
  EXPECT_THAT(ErrorOf("pointer"), HasSubstr("git lfs pull"));
  EXPECT_EQ(ErrorOf("none"), "no such file");
  EXPECT_TRUE(ModelFolder(folder_.path()).Has("dangling"));
  EXPECT_FALSE(ModelFolder(folder_.path()).Has("none"));
}

TEST_F(ModelFolderTest, AFileMayHaveSoManyBytesAndNoMore) {
  Write("a", "1234");
  EXPECT_TRUE(ModelFolder(folder_.path()).Read("a", 4).ok());
  EXPECT_EQ(ModelFolder(folder_.path()).Read("a", 3).status().message(), "has 4 bytes; at most 3 are allowed");
}

TEST_F(ModelFolderTest, AChangeOfAnyFileThatWasSeenIsAChange) {
  Write("a", "1");
  Write("b", "1");
  Link("a", "link");
  ModelFolder files(folder_.path());
  ASSERT_TRUE(files.Read("link", 9).ok());
  ASSERT_FALSE(files.Has("later"));
  EXPECT_FALSE(HasChanged(folder_.path(), files.seen()));
  Write("b", "22");  // which nobody looked at
  EXPECT_FALSE(HasChanged(folder_.path(), files.seen()));
  Write("later", "");
  EXPECT_TRUE(HasChanged(folder_.path(), files.seen()));
  ASSERT_EQ(remove(Path("later").c_str()), 0);
  EXPECT_FALSE(HasChanged(folder_.path(), files.seen()));
  ASSERT_EQ(rename(Path("b").c_str(), Path("a").c_str()), 0);  // another target of the same link
  EXPECT_TRUE(HasChanged(folder_.path(), files.seen()));
}

TEST_F(ModelFolderTest, TwoReadsSeeOneFile) {
  Write("a", "1");
  ModelFolder files(folder_.path());
  ASSERT_TRUE(files.Read("a", 9).ok());
  ASSERT_TRUE(files.Read("a", 9).ok());
  Write("other", "22");
  ASSERT_EQ(rename(Path("other").c_str(), Path("a").c_str()), 0);
  EXPECT_EQ(files.Read("a", 9).status().message(), "changed while the model was read");
}

}  // namespace
}  // namespace edgewise::testing
