// edgewise score: how well a language model predicts a text.
#include <cmath>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/format.h"
#include "client/cli/request/options.h"

namespace edgewise::cli {
namespace {

constexpr size_t kLargestPiece = size_t{4} << 20;
constexpr size_t kSmallestPiece = 256;

struct ScoreFlags {
  CostFlags cost;
  ConnectionFlags connection;
  std::string file;
  std::optional<std::string> text;
  uint32_t stride = 0;
  uint64_t piece_bytes = 0;
  bool json = false;

  void Register(FlagSet& flags) {
    flags.Section("Text (one of --file, --text)");
    cost.RegisterModel(flags);
    flags.Add("file", "FILE", "the text to score (- for standard input), UTF-8", &file);
    flags.Add("text", "TEXT", "the text itself", &text);
    flags.Add("stride", "N", "from window to window of a text beyond the context; 0: half the context", &stride);
    flags.Add("piece_bytes", "N",
              "send the text in pieces of at most so many bytes; otherwise in one, or in as few as "
              "the server takes",
              &piece_bytes);
    flags.Section("Cost and uncertainty");
    cost.RegisterCost(flags);
    flags.Section("Output");
    flags.AddSwitch("json", "print the result as JSON", &json);
    connection.timeout = absl::InfiniteDuration();
    connection.Register(flags);
  }

  absl::StatusOr<std::string> ReadText() const {
    if (text.has_value() == !file.empty()) {
      return absl::InvalidArgumentError(text ? "--file and --text exclude each other"
                                             : "no text: give --file or --text");
    }
    std::string content = text.value_or("");
    if (!text) {
      std::ifstream stream;
      if (file != "-") stream.open(file, std::ios::binary);
      std::istream& in = file == "-" ? std::cin : stream;
      content.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
      if (!in) return absl::NotFoundError(absl::StrCat("--file: cannot read \"", file, "\""));
    }
    if (content.empty()) return absl::InvalidArgumentError("the text is empty");
    if (!IsUtf8(content)) return absl::InvalidArgumentError("the text is not valid UTF-8");
    return content;
  }
};

// Sums over pieces.
struct Score {
  size_t pieces = 0;
  uint64_t bytes = 0;
  uint64_t tokens = 0;  // scored
  double log_likelihood = 0;
  double edges = 0, pairs = 0;
  double compute_us = 0;
  uint32_t samples = 0;
  bool capped = false;
  v1::PredictResponse first;

  void Add(std::string_view piece, const v1::PredictResponse& response) {
    const v1::Prediction& prediction = response.predictions(0);
    if (pieces++ == 0) first = response;
    bytes += piece.size();
    tokens += prediction.scored_tokens();
    log_likelihood += prediction.log_likelihood();
    edges += prediction.edges().edges();
    pairs += static_cast<double>(prediction.edges().pairs());
    capped |= prediction.edges().capped();
    compute_us += static_cast<double>(response.timing().compute_us());
    samples = prediction.samples();
  }

  double loss() const { return tokens == 0 ? 0.0 : -log_likelihood / static_cast<double>(tokens); }
  double bits_per_byte() const { return -log_likelihood / std::log(2.0) / static_cast<double>(bytes); }
  double density() const { return pairs > 0 ? edges / pairs : 0.0; }
};

// A smaller piece may do better.
bool IsTooLarge(const absl::Status& status) {
  const std::string message(status.message());
  return (status.code() == absl::StatusCode::kResourceExhausted && message.find("try again") == std::string::npos) ||
         (status.code() == absl::StatusCode::kInvalidArgument && message.find("would hold") != std::string::npos);
}

absl::Status ScorePieces(Client& client, v1::PredictRequest request, std::string_view text, size_t piece_bytes,
                         std::ostream& err, Score& score) {
  const std::vector<std::string_view> pieces = SplitText(text, piece_bytes);
  for (const std::string_view piece : pieces) {
    v1::Input input;
    input.mutable_sequence()->set_text(std::string(piece));
    absl::StatusOr<v1::PredictResponse> response = AskOne(client, request, input);
    if (!response.ok()) return response.status();
    if (response->predictions(0).perplexity() == 0.0) {
      return absl::FailedPreconditionError(
          absl::StrCat("model \"", request.model(), "\" is no language model; score needs one"));
    }
    score.Add(piece, *response);
    if (!request.ensemble().has_seed()) request.mutable_ensemble()->set_seed(response->seed());  // one for all pieces
    if (pieces.size() > 1) {
      err << absl::StrFormat("%d of %d pieces, loss %.4f\n", score.pieces, pieces.size(), score.loss()) << std::flush;
    }
  }
  return absl::OkStatus();
}

void Print(const Score& score, double seconds, std::ostream& out) {
  out << "model        " << score.first.model() << ", version " << score.first.version() << "\n";
  out << absl::StrFormat("loss         %.4f nats/token\n", score.loss());
  out << absl::StrFormat("perplexity   %.4f\n", std::exp(score.loss()));
  out << absl::StrFormat("bits/byte    %.4f\n", score.bits_per_byte());
  out << "tokens       " << WithCommas(score.tokens) << " scored, of " << WithCommas(score.bytes) << " bytes in "
      << Plural(score.pieces, "request") << "\n";
  if (score.pieces > 1) out << "             the first token of each request is not scored\n";
  out << "density      " << Percent(score.density()) << (score.capped ? ", capped" : "") << "\n";
  out << "samples      " << score.samples << "\n";
  out << absl::StrFormat("time         %.2f s, compute %.2f s, %.0f tokens/s\n", seconds, score.compute_us / 1e6,
                         static_cast<double>(score.tokens) / std::max(seconds, 1e-9));
  out << "device       " << score.first.device() << "\n";
  out << "seed         " << score.first.seed() << "\n";
}

nlohmann::json ToJson(const Score& score, double seconds) {
  return {{"model", score.first.model()},
          {"version", score.first.version()},
          {"loss", score.loss()},
          {"perplexity", std::exp(score.loss())},
          {"bits_per_byte", score.bits_per_byte()},
          {"log_likelihood", score.log_likelihood},
          {"tokens", score.tokens},
          {"bytes", score.bytes},
          {"requests", score.pieces},
          {"edges", score.edges},
          {"pairs", score.pairs},
          {"density", score.density()},
          {"capped", score.capped},
          {"samples", score.samples},
          {"seconds", seconds},
          {"compute_seconds", score.compute_us / 1e6},
          {"device", score.first.device()},
          {"seed", absl::StrCat(score.first.seed())}};
}

}  // namespace

int RunScore(Arguments arguments, std::ostream& out, std::ostream& err) {
  ScoreFlags values;
  FlagSet flags(
      "edgewise score --model NAME --file FILE [flags]",
      "How well a language model predicts a text: loss (nats per token), perplexity, bits per byte, and what it\n"
      "cost in edges. A text beyond the context is scored in windows, each token once.");
  values.Register(flags);
  int exit_code = kExitOk;
  if (!ParseOrHelp(flags, "score", arguments, out, err, exit_code)) return exit_code;
  v1::PredictRequest request;
  if (absl::Status status = values.cost.Apply(request); !status.ok()) return ReportUsageError(status, "score", err);
  request.mutable_outputs()->set_stride(values.stride);
  absl::StatusOr<std::string> text = values.ReadText();
  if (!text.ok()) return ReportUsageError(text.status(), "score", err);
  absl::StatusOr<std::unique_ptr<Client>> client = values.connection.Connect();
  if (!client.ok()) return ReportUsageError(client.status(), "score", err);

  size_t piece_bytes = values.piece_bytes > 0 ? values.piece_bytes : kLargestPiece;
  const absl::Time start = absl::Now();
  Score score;
  absl::Status status = ScorePieces(**client, request, *text, piece_bytes, err, score);
  while (IsTooLarge(status) && values.piece_bytes == 0 && piece_bytes > kSmallestPiece) {
    piece_bytes = std::max(kSmallestPiece, std::min(piece_bytes, text->size()) / 2);
    err << "the server takes no text so long at once; trying pieces of " << WithCommas(piece_bytes) << " bytes\n";
    score = {};
    status = ScorePieces(**client, request, *text, piece_bytes, err, score);
  }
  if (!status.ok()) return ReportServerError(status, values.connection, err);
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  if (values.json) {
    out << ToJson(score, seconds).dump(2) << "\n";
  } else {
    Print(score, seconds, out);
  }
  return kExitOk;
}

}  // namespace edgewise::cli
