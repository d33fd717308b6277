// Flags and JSON lines: what is wrong is named, what is right arrives.
#include "client/cli/request/inputs.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/flag_set.h"
#include "client/cli/request/options.h"

namespace edgewise::cli {
namespace {

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(InputLineTest, TextAndLabelArrive) {
  absl::StatusOr<LabelledInput> input = ParseInputLine(R"({"text": "gr\u00fcn", "second_text": "b", "label": 1})");
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(input->input.sequence().text(), "grün");
  EXPECT_EQ(input->input.second().text(), "b");
  EXPECT_EQ(input->label, 1);
}

TEST(InputLineTest, TokenIdsAndTokenLabelsArrive) {
  absl::StatusOr<LabelledInput> input = ParseInputLine(R"({"token_ids": [5, -1, 2147483647], "labels": [0, null, 2]})");
  ASSERT_TRUE(input.ok()) << input.status();
  ASSERT_EQ(input->input.sequence().token_ids().values_size(), 3);
  EXPECT_EQ(input->input.sequence().token_ids().values(2), 2147483647);
  ASSERT_EQ(input->labels->size(), 3u);
  EXPECT_FALSE((*input->labels)[1].has_value());
  EXPECT_FALSE(input->label.has_value());
}

TEST(InputLineTest, ValueOfARegressionArrives) {
  absl::StatusOr<LabelledInput> input = ParseInputLine(R"({"text": "a", "value": -1.5})");
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(input->value, -1.5);
}

TEST(InputLineTest, TheFileOfAnImageIsRead) {
  const std::string path = ::testing::TempDir() + "inputs_test_image";
  const std::string bytes("\x89PNG\0\n\xff", 7);
  std::ofstream(path, std::ios::binary) << bytes;
  absl::StatusOr<LabelledInput> input = ParseInputLine(absl::StrCat(R"({"image": ")", path, R"(", "label": 1})"));
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(input->input.sequence().image(), bytes);
  EXPECT_EQ(input->label, 1);
  std::ofstream(path, std::ios::trunc).close();
  for (const std::string& bad : {path, ::testing::TempDir(), path + "_missing"}) {
    EXPECT_EQ(Message(ReadImage("image", bad).status()),
              absl::StrCat("image: cannot read \"", bad, "\", or it is empty"));
  }
}

TEST(InputLineTest, FeaturesAndBiasesArriveRowByRow) {
  absl::StatusOr<LabelledInput> input = ParseInputLine(
      R"({"features": [[1, 2.5, -3], [4, 5, 6e-1]], "bias_values": [[0, 1], [2, 3.5]],
          "second_features": [[7]], "second_bias_buckets": [[255]]})");
  ASSERT_TRUE(input.ok()) << input.status();
  const v1::Sequence& first = input->input.sequence();
  EXPECT_EQ(first.features().rows(), 2u);
  EXPECT_EQ(first.features().columns(), 3u);
  ASSERT_EQ(first.features().values_size(), 6);
  EXPECT_EQ(first.features().values(1), 2.5f);
  EXPECT_EQ(first.features().values(5), 0.6f);
  ASSERT_EQ(first.bias().values_size(), 4);
  EXPECT_EQ(first.bias().values(3), 3.5f);
  EXPECT_EQ(input->input.second().features().values(0), 7.0f);
  EXPECT_EQ(input->input.second().bias().buckets(), "\xff");
}

TEST(InputLineTest, EachFaultIsNamed) {
  const std::pair<const char*, const char*> kCases[] = {
      {"{\"text\": ",
       "not valid JSON: column 10: the text ends; a value is expected; expected a JSON object a line, such as "
       "{\"text\": \"a warm film\"}"},
      {"[1]", "not a JSON object; expected a JSON object a line"},
      {"{}", "none of text, token_ids, features and image"},
      {R"({"second_text": "b"})", "none of text, token_ids, features and image"},
      {R"({"image": 1})", "image is not the path of a file"},
      {R"({"image": "a.png", "text": "b"})", "text and image exclude each other"},
      {R"({"features": 1})", "features is not a list of rows"},
      {R"({"features": [1, 2]})", "features[0] is not a list of numbers"},
      {R"({"features": [[1, 2], [3]]})", "features[1] has 1 numbers; features[0] has 2"},
      {R"({"features": [[1, "2"]]})", "features[0][1] is \"2\"; expected a number"},
      {R"({"features": [[1]], "text": "a"})", "text and features exclude each other"},
      {R"({"text": "a", "bias_values": [[1]], "bias_buckets": [[1]]})", "bias_values and bias_buckets exclude"},
      {R"({"text": "a", "bias_buckets": [[1, 256]]})", "bias_buckets[0][1] is 256; expected 0 to 255"},
      {R"({"text": "a", "bias_buckets": [[1.5]]})", "bias_buckets[0][0] is 1.5; expected an integer"},
      {R"({"text": "a", "second_bias_values": [[1]]})", "second_bias stands without a sequence"},
      {R"({"text": "a", "prompt_name": 1})", "prompt_name is not a string"},
      {R"({"text": "a", "second_prompt_name": "b"})", "second_prompt_name stands without a sequence"},
      {R"({"text": 1})", "text is not a string"},
      {R"({"text": "a", "token_ids": [1]})", "text and token_ids exclude each other"},
      {R"({"text": "a", "second_text": "b", "second_token_ids": [1]})", "second_text and second_token_ids exclude"},
      {R"({"token_ids": 7})", "token_ids is not a list of integers"},
      {R"({"token_ids": [1, 2.5]})", "token_ids[1] is 2.5; expected an integer"},
      {R"({"token_ids": ["1"]})", "token_ids[0] is \"1\"; expected an integer"},
      {R"({"token_ids": [2147483648]})", "token_ids[0] is 2147483648; expected a 32-bit integer"},
      {R"({"token_ids": [-2147483649]})", "token_ids[0] is -2147483649; expected a 32-bit integer"},
      {R"({"text": "a", "label": 1.5})", "label is 1.5; expected an integer or a name"},
      {R"({"text": "a", "label": ""})", "label is \"\"; expected an integer or a name"},
      {R"({"text": "a", "label": "b", "labels": ["b"]})", "label and labels exclude each other"},
      {R"({"text": "a", "labels": "b"})", "labels is not a list of integers or names"},
      {R"({"text": "a", "label": 1, "labels": [1]})", "label and labels exclude each other"},
      {R"({"text": "a", "labels": [true]})", "labels[0] is true; expected an integer or a name"},
      {R"({"text": "a", "value": "2"})", "value is \"2\"; expected a number"},
      {R"({"text": "a", "value": 2, "label": 1})", "value excludes label and labels"},
      {R"({"txet": "a"})", "txet is no field"},
      {"{\"text\": \"\xff\"}", "not valid UTF-8"},
      {"{\"text\": \"\xed\xa0\x80\"}", "not valid UTF-8"},
  };
  for (const auto& [line, message] : kCases) {
    absl::StatusOr<LabelledInput> input = ParseInputLine(line);
    EXPECT_EQ(input.status().code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_NE(Message(input.status()).find(message), std::string::npos) << line << "\n" << input.status();
  }
}

TEST(InputFileTest, FaultIsNamedWithItsLineAndBlankLinesAreSkipped) {
  const std::string path = ::testing::TempDir() + "edgewise_inputs.jsonl";
  std::ofstream(path) << "{\"text\": \"a\"}\n\n  \n{\"text\": \"b\"}\n";
  absl::StatusOr<std::vector<LabelledInput>> inputs = ReadInputFile(path);
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  EXPECT_EQ(inputs->size(), 2u);
  std::ofstream(path, std::ios::app) << "{\"text\": 3}\n";
  EXPECT_EQ(Message(ReadInputFile(path).status()), path + ":5: text is not a string");
  std::ofstream(path, std::ios::trunc) << "\n";
  EXPECT_EQ(Message(ReadInputFile(path).status()), "--input: no input in \"" + path + "\"");
  std::remove(path.c_str());
  EXPECT_EQ(ReadInputFile(path).status().code(), absl::StatusCode::kNotFound);
}

TEST(TokenIdsTest, SpacesAreAllowedAndOtherTextIsNot) {
  EXPECT_EQ(*ParseTokenIds("1, 2,3"), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(Message(ParseTokenIds("1,x,3").status()), "token_ids[1] is \"x\"; expected an integer");
  EXPECT_FALSE(ParseTokenIds("").ok());
  EXPECT_FALSE(ParseTokenIds("99999999999").ok());
}

class FlagTest : public ::testing::Test {
 protected:
  FlagTest() {
    unsetenv("EDGEWISE_SERVER");
    request_.Register(flags_);
    connection_.Register(flags_);
  }
  std::string ParseError(const std::vector<std::string>& arguments) { return Message(flags_.Parse(arguments)); }

  RequestFlags request_;
  ConnectionFlags connection_;
  FlagSet flags_{"test", "A test."};
};

TEST_F(FlagTest, BothSpellingsOfAValueArrive) {
  ASSERT_EQ(ParseError({"--model=m", "--samples", "8", "--seed=18446744073709551615", "--dense", "--timeout=250ms",
                        "--text", "--a=b"}),
            "");
  EXPECT_EQ(request_.model, "m");
  EXPECT_EQ(request_.samples, 8u);
  EXPECT_EQ(request_.seed, 18446744073709551615u);
  EXPECT_TRUE(request_.dense);
  EXPECT_EQ(connection_.timeout, absl::Milliseconds(250));
  EXPECT_EQ(request_.text, "--a=b");
}

TEST_F(FlagTest, UnknownFlagIsRefusedWithTheNearestName) {
  EXPECT_EQ(ParseError({"--sample=3"}), "unknown flag --sample; did you mean --samples?");
  EXPECT_EQ(ParseError({"--token-ids=3"}), "unknown flag --token-ids; did you mean --token_ids?");
  EXPECT_EQ(ParseError({"--something_else_altogether"}), "unknown flag --something_else_altogether");
}

TEST_F(FlagTest, BadValuesAreRefusedByName) {
  EXPECT_EQ(ParseError({"--samples=-1"}), "--samples is \"-1\"; expected a whole number, 0 or more, such as 8");
  EXPECT_EQ(ParseError({"--timeout", "5"}), "--timeout is \"5\"; expected a duration such as 5s or 300ms");
  EXPECT_EQ(ParseError({"--max_density=5%"}), "--max_density is \"5%\"; expected a number such as 0.05");
  EXPECT_EQ(ParseError({"--version=one"}), "--version is \"one\"; expected a whole number such as 8");
  EXPECT_EQ(ParseError({"--seed"}), "--seed needs a value: S");
  EXPECT_EQ(ParseError({"--dense=perhaps"}), "--dense is \"perhaps\"; expected true or false");
  EXPECT_NE(ParseError({"predict"}).find("unexpected argument \"predict\""), std::string::npos);
  EXPECT_NE(ParseError({"-m"}).find("unexpected argument"), std::string::npos);
}

absl::Status StatusOfServer(const std::string& written) {
  ConnectionFlags flags;
  flags.server = written;
  return flags.Connect().status();
}

TEST(ConnectionFlagsTest, ServersAreWhatPeopleWrite) {
  for (const char* written : {"localhost", "::1", "[::1]:9", "http://host", "http://host:9/", "unix:/run/e",
                              "dns:///host:9", "http://127.0.0.1:9/,http://127.0.0.2:9/"}) {
    EXPECT_TRUE(StatusOfServer(written).ok()) << written << StatusOfServer(written);
  }
}

TEST(ConnectionFlagsTest, WhatIsNoServerIsRefusedWithAnExample) {
  for (const char* written :
       {"", ":8001", "localhost:x", "localhost:0", "localhost:65536", "host/path", "http://", "a b"}) {
    EXPECT_NE(Message(StatusOfServer(written)).find("expected HOST:PORT"), std::string::npos) << written;
  }
  EXPECT_EQ(Message(StatusOfServer("https://host:9")),
            "--server is \"https://host:9\"; expected HOST:PORT with --tls or --tls_ca_file=PEM");
}

TEST(ConnectionHintTest, WhatTheServerItselfSaysNeedsNone) {
  const ConnectionFlags flags;
  EXPECT_EQ(flags.Hint(absl::UnavailableError("model \"m\" version 1 is loading")), "");
  EXPECT_EQ(flags.Hint(absl::NotFoundError("failed to connect")), "");
  EXPECT_NE(flags.Hint(absl::UnavailableError("failed to connect to all addresses; last error: x")), "");
  EXPECT_NE(flags.Hint(absl::UnavailableError("last error: INTERNAL: Trying to connect an http1.x server")), "");
}

TEST_F(FlagTest, FlagGivenTwiceIsRefused) { EXPECT_EQ(ParseError({"--dense", "--dense"}), "--dense is given twice"); }

TEST_F(FlagTest, HelpNamesEveryFlagAndItsDefault) {
  const std::string help = flags_.Help();
  for (const char* name : {"--model NAME", "--max_density D", "--seed S", "--tls_ca_file PEM", "--dense"}) {
    EXPECT_NE(help.find(name), std::string::npos) << name;
  }
  EXPECT_NE(help.find("(default 127.0.0.1:8001)"), std::string::npos);
  EXPECT_NE(help.find("(default 1m)"), std::string::npos);
}

TEST_F(FlagTest, RequestCarriesWhatTheFlagsSay) {
  ASSERT_EQ(ParseError({"--model=m", "--version=2", "--max_density=0.25", "--samples=16", "--first_sample=4",
                        "--tolerance=0.5", "--dense", "--top_k=3", "--priority=1", "--allow_degraded",
                        "--keep_edges=probable"}),
            "");
  absl::StatusOr<v1::PredictRequest> request = request_.MakeRequest();
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->version(), 2);
  EXPECT_EQ(request->budget().max_density(), 0.25);
  EXPECT_TRUE(request->budget().allow_degraded());
  EXPECT_EQ(request->budget().keep(), v1::PROBABLE);
  EXPECT_EQ(request->ensemble().samples(), 16u);
  EXPECT_EQ(request->ensemble().first_sample(), 4u);
  EXPECT_EQ(request->ensemble().tolerance(), 0.5);
  EXPECT_FALSE(request->ensemble().has_seed());
  EXPECT_EQ(request->attention(), v1::DENSE);
  EXPECT_EQ(request->outputs().top_k(), 3u);
  EXPECT_EQ(request->priority(), 1u);
}

TEST_F(FlagTest, OverrideIsMadeOfItsFlags) {
  ASSERT_EQ(ParseError({"--model=m", "--windows=8", "--sigma=0.1,0.25", "--last_layers=2", "--stride=64"}), "");
  absl::StatusOr<v1::PredictRequest> request = request_.MakeRequest();
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->override().kind(), "ssa");
  EXPECT_EQ(request->override().windows(), 8u);
  ASSERT_EQ(request->override().sigma_size(), 2);
  EXPECT_EQ(request->override().sigma(1), 0.25);
  EXPECT_EQ(request->override().last_layers(), 2u);
  EXPECT_EQ(request->outputs().stride(), 64u);
  request_.sigma = "a";
  EXPECT_EQ(Message(request_.MakeRequest().status()), "--sigma is \"a\"; expected numbers, as 0.1 or 0.1,0.3");
  request_.sigma.clear();
  EXPECT_EQ(Message(request_.MakeRequest().status()), "--windows needs --sigma, such as --sigma=0.1");
  request_.windows = 0;
  EXPECT_EQ(Message(request_.MakeRequest().status()),
            "--last_layers goes with --windows, --window_tokens, --keep or --block_pattern");
  request_.keep = 16;
  EXPECT_TRUE(request_.MakeRequest().ok());
  request_.window_tokens = 16;
  EXPECT_EQ(Message(request_.MakeRequest().status()),
            "--windows, --window_tokens, --keep and --block_pattern exclude each other");
  request_.keep = 0;
  EXPECT_EQ(Message(request_.MakeRequest().status()), "--window_tokens needs --sigma, such as --sigma=16");
  request_.sigma = "8";
  request = request_.MakeRequest();
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->override().window_tokens(), 16u);
  EXPECT_EQ(request->override().sigma(0), 8.0);
  request_.dense = true;
  EXPECT_EQ(Message(request_.MakeRequest().status()),
            "--dense excludes --windows, --window_tokens, --keep and --block_pattern");
}

TEST_F(FlagTest, BlocksAreMadeOfTheirFlags) {
  ASSERT_EQ(ParseError({"--model=m", "--block_pattern=local", "--block_size=16", "--block_width=0", "--block_stride=3",
                        "--block_threshold=0.5", "--last_layers=2"}),
            "");
  const absl::StatusOr<v1::PredictRequest> request = request_.MakeRequest();
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->override().kind(), "block");
  EXPECT_EQ(request->override().pattern(), "local");
  EXPECT_EQ(request->override().block_size(), 16u);
  EXPECT_TRUE(request->override().has_width());
  EXPECT_EQ(request->override().width(), 0u);
  EXPECT_EQ(request->override().stride(), 3u);
  EXPECT_EQ(request->override().threshold(), 0.5);
  EXPECT_EQ(request->override().last_layers(), 2u);
  EXPECT_EQ(request->outputs().stride(), 0u) << "that is of windows of a text";
  request_.block_pattern.clear();
  EXPECT_EQ(Message(request_.MakeRequest().status()), "--block_size goes with --block_pattern");
}

TEST_F(FlagTest, ListFlagsTakeEveryValue) {
  std::vector<std::string> values;
  flags_.AddList("stop", "TEXT", "ends here", &values);
  ASSERT_EQ(ParseError({"--stop=a", "--stop", "b,c"}), "");
  EXPECT_EQ(values, (std::vector<std::string>{"a", "b,c"}));
}

TEST_F(FlagTest, ImpossibleRequestsAreRefusedBeforeTheyAreSent) {
  EXPECT_EQ(Message(request_.MakeRequest().status()), "--model is missing");
  request_.model = "m";
  EXPECT_TRUE(request_.MakeRequest().ok());
  for (double density : {0.0, -0.1, 1.0001, std::nan("")}) {
    request_.max_density = density;
    EXPECT_NE(Message(request_.MakeRequest().status()).find("expected in (0, 1]"), std::string::npos) << density;
  }
  request_.max_density = 1.0;
  EXPECT_TRUE(request_.MakeRequest().ok());
  request_.max_edges = 5;
  EXPECT_EQ(Message(request_.MakeRequest().status()), "--max_edges and --max_density exclude each other");
  request_.max_density.reset();
  request_.max_edges = 0;
  EXPECT_EQ(Message(request_.MakeRequest().status()), "--max_edges is 0; expected >= 1");
  request_.max_edges = 1;
  request_.keep_edges = "all";
  EXPECT_EQ(Message(request_.MakeRequest().status()), "--keep_edges is \"all\"; expected random or probable");
}

TEST_F(FlagTest, ExactlyOneSourceOfInputIsAccepted) {
  EXPECT_EQ(Message(request_.ReadInputs().status()), "no input: give --text, --token_ids, --image or --input");
  request_.text = "a";
  request_.truncate = "head";
  request_.second_token_ids = "1,2";
  absl::StatusOr<std::vector<LabelledInput>> inputs = request_.ReadInputs();
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  EXPECT_EQ(inputs->front().input.sequence().truncate(), v1::HEAD);
  EXPECT_EQ(inputs->front().input.second().token_ids().values_size(), 2);
  request_.truncate = "middle";
  EXPECT_EQ(Message(request_.ReadInputs().status()), "--truncate is \"middle\"; expected head or tail");
  request_.token_ids = "1";
  EXPECT_EQ(Message(request_.ReadInputs().status()), "--text, --token_ids, --image and --input exclude each other");
}

TEST_F(FlagTest, APromptIsOfTheInputsThatNameNone) {
  const std::string path = ::testing::TempDir() + "inputs_test_prompts";
  std::ofstream(path) << R"({"text": "a"})"
                      << "\n"
                      << R"({"text": "b", "prompt_name": "", "second_text": "c", "second_prompt_name": "d"})"
                      << "\n";
  request_.input = path;
  absl::StatusOr<std::vector<LabelledInput>> inputs = request_.ReadInputs();
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  EXPECT_FALSE((*inputs)[0].input.sequence().has_prompt_name());
  EXPECT_TRUE((*inputs)[1].input.sequence().has_prompt_name());
  EXPECT_EQ((*inputs)[1].input.second().prompt_name(), "d");
  request_.prompt_name = "query";
  inputs = request_.ReadInputs();
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  EXPECT_EQ((*inputs)[0].input.sequence().prompt_name(), "query");
  EXPECT_EQ((*inputs)[1].input.sequence().prompt_name(), "");
}

}  // namespace
}  // namespace edgewise::cli
