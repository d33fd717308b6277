// Language models from the client's side: the streaming call, `edgewise generate` and `edgewise score`.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/request/inputs.h"
#include "edgewise/client/client.h"
#include "tests/client/fake_service.h"

namespace edgewise::cli {
namespace {

using testing::CallInfo;
using testing::FakeServer;

#define EXPECT_HAS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << (text)

struct Outcome {
  int status;
  std::string out;
  std::string err;
};

v1::GenerateResponse Token(int id, const std::string& text, bool done = false) {
  v1::GenerateResponse message;
  message.set_token_id(id);
  message.set_text(text);
  message.set_log_probability(-0.5);
  message.mutable_edges()->set_edges(10);
  message.mutable_edges()->set_pairs(40);
  message.set_done(done);
  if (done) {
    message.set_finish_reason("length");
    message.set_seed(7);
  }
  return message;
}

// Half a nat a token, a token for every byte; texts of more than `most` bytes are refused.
absl::StatusOr<v1::PredictResponse> Score(const v1::PredictRequest& request, size_t most) {
  const std::string& text = request.inputs(0).sequence().text();
  if (text.size() > most) return absl::InvalidArgumentError("ensemble.samples times inputs would hold too much");
  v1::PredictResponse response;
  response.set_model(request.model());
  response.set_version(1);
  response.set_seed(request.ensemble().has_seed() ? request.ensemble().seed() : 11);
  v1::Prediction* prediction = response.add_predictions();
  prediction->set_samples(1);
  prediction->set_scored_tokens(static_cast<uint32_t>(text.size() - 1));
  prediction->set_log_likelihood(-0.5 * static_cast<double>(text.size() - 1));
  prediction->set_perplexity(std::exp(0.5));
  prediction->mutable_edges()->set_edges(5);
  prediction->mutable_edges()->set_pairs(20);
  return response;
}

class LanguageTest : public ::testing::Test {
 protected:
  LanguageTest()
      : server_([this](const v1::PredictRequest& request, const CallInfo&) {
          std::lock_guard lock(mutex_);
          scored_.push_back(request);
          return Score(request, most_);
        }) {
    server_.SetGenerate([this](const v1::GenerateRequest& request, const FakeServer::Emit& emit) {
      {
        std::lock_guard lock(mutex_);
        generated_ = request;
      }
      if (request.prompt().text() == "refuse") return absl::InvalidArgumentError("prompt is refused");
      emit(Token(5, "Hel"));
      emit(Token(6, ""));
      if (request.prompt().text() == "fail") return absl::UnavailableError("shutting down");
      emit(Token(7, "lo\n", true));
      return absl::OkStatus();
    });
  }

  Outcome RunHere(std::vector<std::string> arguments) {
    arguments.push_back("--server=" + server_.address());
    std::ostringstream out, err;
    const int status = RunCommand(arguments, out, err);
    return {status, out.str(), err.str()};
  }
  std::string WriteText(const std::string& text) {
    const std::string path = ::testing::TempDir() + "edgewise_language_" +
                             ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".txt";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  std::mutex mutex_;
  v1::GenerateRequest generated_;
  std::vector<v1::PredictRequest> scored_;
  size_t most_ = 1 << 20;
  FakeServer server_;
};

TEST_F(LanguageTest, TokensArriveInOrderUntilTheStreamEnds) {
  auto client = Client::Create({.address = server_.address()});
  std::vector<int> ids;
  const absl::Status status = (*client)->Generate({}, [&](const v1::GenerateResponse& message) {
    ids.push_back(message.token_id());
    return true;
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(ids, (std::vector<int>{5, 6, 7}));
}

TEST_F(LanguageTest, StreamEndsWithTheStatusOfTheServerAfterItsTokens) {
  auto client = Client::Create({.address = server_.address()});
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text("fail");
  int tokens = 0;
  const absl::Status status = (*client)->Generate(request, [&](const v1::GenerateResponse&) { return ++tokens > 0; });
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(tokens, 2);
}

TEST_F(LanguageTest, CallerThatWantsNoMoreGetsOk) {
  auto client = Client::Create({.address = server_.address()});
  int tokens = 0;
  EXPECT_TRUE((*client)->Generate({}, [&](const v1::GenerateResponse&) { return ++tokens < 2; }).ok());
  EXPECT_EQ(tokens, 2);
}

TEST_F(LanguageTest, CancellationEndsCallsUnderWayAndLaterOnes) {
  auto client = Client::Create({.address = server_.address()});
  server_.SetGenerate([](const v1::GenerateRequest&, const FakeServer::Emit& emit) {
    while (emit(Token(1, "x"))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return absl::CancelledError("gone");
  });
  Cancellation cancellation;
  int tokens = 0;
  std::jthread canceller;
  const absl::Status status = (*client)->Generate({},
                                                  [&](const v1::GenerateResponse&) {
                                                    if (++tokens == 3)
                                                      canceller = std::jthread([&] { cancellation.Cancel(); });
                                                    return true;
                                                  },
                                                  {.timeout = absl::Minutes(1), .cancellation = &cancellation});
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(cancellation.cancelled());
  EXPECT_TRUE(
      absl::IsCancelled((*client)->GetModel("toy", 0, {.timeout = {}, .cancellation = &cancellation}).status()));
}

TEST_F(LanguageTest, GeneratePrintsTheTextAsItComesAndWhatItCost) {
  const Outcome run = RunHere({"generate", "--model=toy", "--prompt=Say", "--max_new_tokens=3", "--temperature=0.5",
                               "--top_k=9", "--top_p=0.9", "--stop=a", "--stop=b", "--seed=7", "--samples=2",
                               "--max_density=0.5", "--keep=4", "--priority=1", "--overflow=halve", "--min_p=0.1",
                               "--presence_penalty=0.5", "--frequency_penalty=-0.5", "--repetition_penalty=1.5"});
  EXPECT_EQ(run.status, kExitOk) << run.err;
  EXPECT_EQ(run.out.substr(0, 7), "Hello\n\n");
  EXPECT_HAS(run.out, "3 tokens in ");
  EXPECT_HAS(run.out, " tokens/s, density 25.00 %, ended by length, seed 7");
  EXPECT_EQ(generated_.prompt().text(), "Say");
  EXPECT_EQ(generated_.max_new_tokens(), 3u);
  EXPECT_EQ(generated_.temperature(), 0.5);
  EXPECT_EQ(generated_.top_k(), 9u);
  EXPECT_EQ(generated_.top_p(), 0.9);
  EXPECT_EQ(generated_.min_p(), 0.1);
  EXPECT_EQ(generated_.presence_penalty(), 0.5);
  EXPECT_EQ(generated_.frequency_penalty(), -0.5);
  EXPECT_EQ(generated_.repetition_penalty(), 1.5);
  EXPECT_EQ(generated_.stop_size(), 2);
  EXPECT_EQ(generated_.overflow(), v1::HALVE);
  EXPECT_EQ(generated_.ensemble().seed(), 7u);
  EXPECT_EQ(generated_.ensemble().samples(), 2u);
  EXPECT_EQ(generated_.budget().max_density(), 0.5);
  EXPECT_EQ(generated_.override().keep(), 4u);
  EXPECT_EQ(generated_.priority(), 1u);
}

TEST_F(LanguageTest, GenerateAsJsonIsALineForEveryMessage) {
  const Outcome run = RunHere({"generate", "--model=toy", "--prompt=Say", "--json", "--alternatives=4"});
  EXPECT_EQ(generated_.alternatives(), 4u);
  EXPECT_FALSE(generated_.has_repetition_penalty());
  ASSERT_EQ(run.status, kExitOk) << run.err;
  std::istringstream stream(run.out);
  std::vector<nlohmann::json> messages;
  for (std::string line; std::getline(stream, line);) messages.push_back(nlohmann::json::parse(line, nullptr, false));
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0]["token_id"], 5);
  EXPECT_EQ(messages[2]["done"], true);
  EXPECT_HAS(run.err, "3 tokens in ");
}

TEST_F(LanguageTest, ModelWithoutATokenizerGivesTokenIds) {
  const Outcome run = RunHere({"generate", "--model=ids", "--token_ids=1,2"});
  EXPECT_EQ(run.status, kExitOk) << run.err;
  EXPECT_EQ(run.out.substr(0, 6), "5 6 7\n");
  EXPECT_EQ(generated_.prompt().token_ids().values_size(), 2);
}

TEST_F(LanguageTest, GenerateThatFailsSaysSoAfterWhatCame) {
  Outcome run = RunHere({"generate", "--model=toy", "--prompt=fail"});
  EXPECT_EQ(run.status, kExitServer);
  EXPECT_EQ(run.out, "Hel\n");
  EXPECT_HAS(run.err, "UNAVAILABLE: shutting down");
  run = RunHere({"generate", "--model=toy", "--prompt=refuse"});
  EXPECT_EQ(run.status, kExitServer);
  EXPECT_HAS(run.err, "INVALID_ARGUMENT: prompt is refused");
  EXPECT_HAS(RunHere({"generate", "--model=ghost", "--prompt=a"}).err, "NOT_FOUND");
}

TEST_F(LanguageTest, AChatIsSentAsMessages) {
  const Outcome outcome = RunHere({"generate", "--model=toy", "--chat=How are you?", "--system=Be brief."});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  std::lock_guard lock(mutex_);
  EXPECT_FALSE(generated_.has_prompt());
  ASSERT_EQ(generated_.messages_size(), 2);
  EXPECT_EQ(generated_.messages(0).role(), "system");
  EXPECT_EQ(generated_.messages(0).content(), "Be brief.");
  EXPECT_EQ(generated_.messages(1).role(), "user");
  EXPECT_EQ(generated_.messages(1).content(), "How are you?");
}

TEST_F(LanguageTest, WrongFlagsAreToldBeforeAnythingIsSent) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"generate", "--prompt=a"}, "--model is missing"},
      {{"generate", "--model=toy"}, "no prompt: give --prompt, --token_ids or --chat"},
      {{"generate", "--model=toy", "--chat=a", "--prompt=b"},
       "--chat goes without --prompt, --token_ids and --truncate"},
      {{"generate", "--model=toy", "--system=a", "--prompt=b"}, "--system goes with --chat"},
      {{"generate", "--model=toy", "--prompt=a", "--token_ids=1"}, "--prompt and --token_ids exclude each other"},
      {{"generate", "--model=toy", "--prompt=a", "--max_new_tokens=0"}, "--max_new_tokens is 0"},
      {{"generate", "--model=toy", "--prompt=a", "--temperature=-1"}, "--temperature is -1"},
      {{"generate", "--model=toy", "--prompt=a", "--temperature=nan"}, "--temperature is nan"},
      {{"generate", "--model=toy", "--prompt=a", "--top_p=1.5"}, "--top_p is 1.5"},
      {{"generate", "--model=toy", "--prompt=a", "--min_p=-1"}, "--min_p is -1; expected 0 to 1"},
      {{"generate", "--model=toy", "--prompt=a", "--alternatives=2"}, "--alternatives goes with --json"},
      {{"generate", "--model=toy", "--prompt=a", "--overflow=half"},
       "--overflow is \"half\"; expected slide, halve or stop"},
      {{"generate", "--model=toy", "--prompt=a", "--stop=\xff"}, "--stop is not valid UTF-8"},
      {{"score", "--model=toy"}, "no text: give --file or --text"},
      {{"score", "--model=toy", "--file=/does/not/exist"}, "--file: cannot read \"/does/not/exist\""},
      {{"score", "--model=toy", "--text=\xff"}, "the text is not valid UTF-8"},
      {{"score", "--model=toy", "--text="}, "the text is empty"},
      {{"score", "--model=toy", "--text=a", "--file=b"}, "--file and --text exclude each other"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome run = RunHere(arguments);
    EXPECT_EQ(run.status, kExitUsage) << message;
    EXPECT_HAS(run.err, message);
  }
  EXPECT_TRUE(scored_.empty());
}

TEST_F(LanguageTest, ScoreIsLossPerplexityAndBitsPerByteOfTheWholeFile) {
  const std::string path = WriteText(std::string(101, 'x'));
  const Outcome run = RunHere({"score", "--model=toy", "--file=" + path, "--stride=5", "--samples=3", "--max_edges=9"});
  EXPECT_EQ(run.status, kExitOk) << run.err;
  EXPECT_HAS(run.out, "loss         0.5000 nats/token");
  EXPECT_HAS(run.out, "perplexity   1.6487");
  EXPECT_HAS(run.out, "bits/byte    0.7142");  // 50 nats are 72.13 bits, of 101 bytes
  EXPECT_HAS(run.out, "tokens       100 scored, of 101 bytes in 1 request");
  EXPECT_HAS(run.out, "density      25.00 %");
  ASSERT_EQ(scored_.size(), 1u);
  EXPECT_EQ(scored_[0].outputs().stride(), 5u);
  EXPECT_EQ(scored_[0].ensemble().samples(), 3u);
  EXPECT_EQ(scored_[0].budget().max_edges(), 9u);
  std::remove(path.c_str());
}

TEST_F(LanguageTest, TextThatTheServerDoesNotTakeAtOnceGoesInPiecesAndThatIsSaid) {
  most_ = 6000;
  const std::string path = WriteText(std::string(20000, 'x'));
  const Outcome run = RunHere({"score", "--model=toy", "--file=" + path, "--json"});
  ASSERT_EQ(run.status, kExitOk) << run.err;
  EXPECT_HAS(run.err, "trying pieces of 5,000 bytes");
  const nlohmann::json json = nlohmann::json::parse(run.out, nullptr, false);
  EXPECT_EQ(json["requests"], 4);
  EXPECT_EQ(json["tokens"], 20000 - 4);
  EXPECT_EQ(json["bytes"], 20000);
  EXPECT_NEAR(json["loss"].get<double>(), 0.5, 1e-12);
  EXPECT_EQ(scored_.back().ensemble().seed(), 11u) << "pieces share a seed";
  EXPECT_HAS(RunHere({"score", "--model=toy", "--file=" + path, "--piece_bytes=4000"}).out, "in 5 requests");
  most_ = 10;
  EXPECT_EQ(RunHere({"score", "--model=toy", "--file=" + path}).status, kExitServer);
  std::remove(path.c_str());
}

TEST(SplitTextTest, PiecesAreTheTextAndEndWhereOneMayEnd) {
  const std::string text = "one two three\nfour five six seven\n\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9 end of it all";
  for (size_t bytes = 4; bytes < 60; ++bytes) {
    std::string whole;
    for (const std::string_view piece : SplitText(text, bytes)) {
      EXPECT_LE(piece.size(), bytes);
      EXPECT_FALSE(piece.empty());
      EXPECT_NE(static_cast<unsigned char>(piece[0]) & 0xc0, 0x80) << "inside a character, " << bytes;
      whole += piece;
    }
    EXPECT_EQ(whole, text);
  }
  EXPECT_EQ(SplitText(text, 16)[0], "one two three\n");
  EXPECT_TRUE(SplitText("", 16).empty());
}

TEST(SplitTextTest, TheLastPieceIsNotAScrap) {
  const std::string text(1010, 'x');
  for (const std::string_view piece : SplitText(text, 100)) EXPECT_GE(piece.size(), 90u);
}

}  // namespace
}  // namespace edgewise::cli
