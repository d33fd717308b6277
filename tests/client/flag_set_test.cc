// The one parser of flags: arguments, environment, help.
#include "base/flag_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace edgewise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FlagSetTest : public ::testing::Test {
 protected:
  FlagSetTest() {
    flags_.Section("All");
    flags_.Add("model_repository", "DIR", "folder of models", &repository_);
    flags_.Add("max_connections_per_peer", "N", "most connections", &connections_, {1});
    flags_.Add("tokens", "N", "length", &tokens_, {1, 8192});
    flags_.Add("drain_delay", "DURATION", "time", &delay_,
               {std::chrono::milliseconds(0), std::chrono::milliseconds(std::chrono::hours(24))});
    flags_.AddChoice("ready", "when", {{"any", 1}, {"all", 2}}, &ready_);
    flags_.AddSwitch("reflection", "serve reflection", &reflection_);
    flags_.AddSwitch("normal", "begins as a negation does", &normal_);
    flags_.AddList("model", "NAME=DIR", "a folder", &models_);
  }

  std::string Parse(const std::vector<std::string>& arguments) {
    return std::string(flags_.Parse(arguments).message());
  }
  std::string Read(std::vector<const char*> environment) {
    environment.push_back(nullptr);
    return std::string(flags_.ReadEnvironment("EDGEWISE_", environment.data(), &misspelt_).message());
  }

  std::string repository_;
  uint32_t connections_ = 1024;
  int tokens_ = 512, ready_ = 1;
  std::chrono::milliseconds delay_{0};
  bool reflection_ = false, normal_ = false;
  std::vector<std::string> models_, misspelt_;
  FlagSet flags_{"program [flags]", "A program."};
};

TEST_F(FlagSetTest, EveryFlagCanComeFromTheEnvironment) {
  ASSERT_EQ(Read({"PATH=/bin", "EDGEWISE_MODEL_REPOSITORY=/a=b", "EDGEWISE_MAX_CONNECTIONS_PER_PEER=7",
                  "EDGEWISE_TOKENS=9", "EDGEWISE_DRAIN_DELAY=5s", "EDGEWISE_READY=all", "EDGEWISE_REFLECTION=true",
                  "EDGEWISE_MODEL=a=/x,b=/y", "TOKENS=3", "EDGEWISE_"}),
            "");
  EXPECT_EQ(repository_, "/a=b");
  EXPECT_EQ(connections_, 7u);
  EXPECT_EQ(tokens_, 9);
  EXPECT_EQ(delay_, std::chrono::seconds(5));
  EXPECT_EQ(ready_, 2);
  EXPECT_TRUE(reflection_);
  EXPECT_THAT(models_, ElementsAre("a=/x", "b=/y"));
  EXPECT_THAT(misspelt_, IsEmpty());
}

TEST_F(FlagSetTest, AFlagWinsOverTheEnvironment) {
  ASSERT_EQ(Parse({"--tokens=10", "--noreflection", "--model=c=/z", "--model", "d=/w"}), "");
  ASSERT_EQ(Read({"EDGEWISE_TOKENS=wrong", "EDGEWISE_REFLECTION=1", "EDGEWISE_MODEL=a=/x,b=/y"}), "");
  EXPECT_EQ(tokens_, 10);
  EXPECT_FALSE(reflection_);
  EXPECT_THAT(models_, ElementsAre("c=/z", "d=/w"));
}

TEST_F(FlagSetTest, AWrongValueNamesTheVariable) {
  EXPECT_EQ(Read({"EDGEWISE_TOKENS=0"}), "EDGEWISE_TOKENS is \"0\"; expected a whole number from 1 to 8192");
  EXPECT_EQ(Read({"EDGEWISE_REFLECTION="}), "EDGEWISE_REFLECTION is \"\"; expected true or false");
}

TEST_F(FlagSetTest, AMisspeltVariableIsAnsweredWithTheNearestFlag) {
  ASSERT_EQ(Read({"EDGEWISE_MODEL_REPOSITRY=x", "EDGEWISE_tokens=3", "EDGEWISE_MODELS=x"}), "");
  EXPECT_THAT(misspelt_, ElementsAre("EDGEWISE_MODEL_REPOSITRY is no flag; did you mean EDGEWISE_MODEL_REPOSITORY?",
                                     "EDGEWISE_tokens is no flag; did you mean EDGEWISE_TOKENS?",
                                     "EDGEWISE_MODELS is no flag; did you mean EDGEWISE_MODEL?"));
  EXPECT_EQ(tokens_, 512);
}

TEST_F(FlagSetTest, AnUnknownFlagIsAnsweredWithTheNearestOne) {
  EXPECT_EQ(Parse({"--model-repository=x"}), "unknown flag --model-repository; did you mean --model_repository?");
  EXPECT_EQ(Parse({"--max-connections-per-peer", "3"}),
            "unknown flag --max-connections-per-peer; did you mean --max_connections_per_peer?");
  EXPECT_EQ(Parse({"--token=3"}), "unknown flag --token; did you mean --tokens?");
  EXPECT_EQ(Parse({"--something_else"}), "unknown flag --something_else");
}

TEST_F(FlagSetTest, OnlySwitchesAreNegated) {
  reflection_ = true;
  ASSERT_EQ(Parse({"--noreflection", "--normal"}), "");
  EXPECT_FALSE(reflection_);
  EXPECT_TRUE(normal_) << "no negation of --rmal";
  EXPECT_EQ(Parse({"--notokens"}), "unknown flag --notokens; did you mean --tokens?");
}

TEST_F(FlagSetTest, ValuesOutsideOfTheirRangeAreRefused) {
  EXPECT_EQ(Parse({"--max_connections_per_peer=0"}),
            "--max_connections_per_peer is \"0\"; expected a whole number, 1 or more");
  EXPECT_EQ(Parse({"--tokens=8193"}), "--tokens is \"8193\"; expected a whole number from 1 to 8192");
  EXPECT_EQ(Parse({"--drain_delay=-1s"}), "--drain_delay is \"-1s\"; expected a duration from 0 to 24h");
  EXPECT_EQ(Parse({"--ready=some"}), "--ready is \"some\"; expected any, all");
  EXPECT_EQ(tokens_, 512);
  FlagSet more("program", "");
  more.LetLastWin();
  more.Add("drain_delay", "DURATION", "time", &delay_,
           {std::chrono::milliseconds(0), std::chrono::milliseconds(std::chrono::hours(24))});
  for (const char* wrong : {"24h1ms", "24h1us", "inf", "5"}) {
    EXPECT_FALSE(more.Parse(std::vector<std::string>{std::string("--drain_delay=") + wrong}).ok()) << wrong;
  }
  EXPECT_TRUE(more.Parse(std::vector<std::string>{"--drain_delay=24h"}).ok());
}

TEST_F(FlagSetTest, OfAFlagGivenTwiceTheLastOneCountsWhereThatIsTheRule) {
  EXPECT_EQ(Parse({"--tokens=1", "--tokens=2"}), "--tokens is given twice");
  flags_.LetLastWin();
  EXPECT_EQ(Parse({"--tokens=3", "--tokens=4"}), "");
  EXPECT_EQ(tokens_, 4);
}

TEST_F(FlagSetTest, HelpShowsDefaultsAndBreaksLongLines) {
  std::string text;
  flags_.Add("long", "TEXT", std::string(300, 'a').insert(100, " ").insert(200, " ").c_str(), &text);
  const std::string help = flags_.Help();
  EXPECT_THAT(help, HasSubstr("Usage: program [flags]\n\nA program.\n\nAll:\n  --model_repository DIR      folder of"));
  EXPECT_THAT(help, HasSubstr("  --tokens N                  length (default 512)\n"));
  EXPECT_THAT(help, HasSubstr("  --ready any|all             when (default any)\n"));
  EXPECT_THAT(
      help,
      HasSubstr("  --max_connections_per_peer N\n                              most connections (default 1024)\n"));
  EXPECT_THAT(help, HasSubstr("\n" + std::string(30, ' ') + "aaa"));
}

}  // namespace
}  // namespace edgewise
