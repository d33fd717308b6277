// /v1/completions and /v1/chat/completions: runs the choices of a body beside each other, and writes their texts as one
// answer or as server-sent events.
#include <deque>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "server/http/json_in.h"
#include "server/http/openai.h"
#include "server/http/openai_logprobs.h"
#include "server/validate/validate.h"

namespace edgewise::server {
namespace {

class Generations;

// One choice. Its tokens come one at a time.
struct Choice final : TokenStream {
  Choice(Generations& all, int index, MemoryAccount& account, const Logprobs& logprobs)
      : memory(account), all(all), index(index), logprobs(logprobs) {}

  bool ready() const override;
  void Send(std::unique_ptr<v1::GenerateResponse> message) override;

  MemoryHold memory;  // of the request
  Generations& all;
  const int index;
  std::string text;  // where it is not streamed
  Logprobs logprobs;
  bool began = false;
  double edges = 0.0, pairs = 0.0;
  uint64_t budget = 0;
  bool capped = false;
  v1::GenerateResponse last;               // the message that is done
  const v1::Prediction* prompt = nullptr;  // that is repeated
};

// The scores of a prompt that is repeated.
struct EchoedPrompt {
  explicit EchoedPrompt(MemoryAccount& account) : memory(account), sent_memory(account) {}

  std::string Text() const {
    if (!sent.empty()) return sent;
    std::string text;
    for (const v1::TokenScore& token : response.predictions(0).token_scores()) text += token.token_bytes();
    return text;
  }

  MemoryHold memory;       // of the request
  MemoryHold sent_memory;  // of `sent`, and of the message that the request is made of
  std::string sent;        // empty: the prompt is token ids
  v1::PredictResponse response;
};

// Lives until the last choice has ended.
class Generations final : public std::enable_shared_from_this<Generations> {
 public:
  Generations(CallParts& parts, std::shared_ptr<Exchange> exchange, const http::OpenAiGeneration& body, bool chat,
              int n)
      : parts_(parts),
        exchange_(std::move(exchange)),
        chat_(chat),
        stream_(body.stream()),
        usage_(body.stream_options().include_usage()),
        model_(body.model()),
        of_prompt_(n),
        line_(parts.handler.NewLine(exchange_->call.principal)),
        id_(NewId(chat ? "chatcmpl-" : "cmpl-")),
        created_(UnixTime()) {}

  void Start(GenerationPlan& plan) {
    const Logprobs logprobs(chat_, plan.logprobs);
    for (int i = 0; i < plan.choices(); ++i) choices_.emplace_back(*this, i, *exchange_->account, logprobs);
    const bool writes = !plan.echo || plan.request.max_new_tokens() > 0;
    {
      const absl::MutexLock lock(&mutex_);
      open_ = (writes ? choices_.size() : 0) + (plan.echo ? plan.prompts.size() : 0);
    }
    plan.request.set_request_id(exchange_->request.id.empty() ? id_ : exchange_->request.id);
    for (Choice& choice : choices_) {
      plan.Choose(choice.index);
      if (plan.echo && choice.index % of_prompt_ == 0) Score(plan.request);
      if (!writes) continue;
      Ticket ticket = TicketOf(*exchange_, Rpc::kGenerate, choice.memory);
      ticket.stream = &choice;
      ticket.line = line_;
      ticket.reply = [self = shared_from_this(), prompt = choice.index / of_prompt_](const absl::Status& status) {
        self->OnEnd(prompt, status);
      };
      parts_.handler.Start(plan.request, std::move(ticket));
    }
  }

  bool ready() const { return !stream_ || !exchange_->full(); }

  void OnToken(Choice& choice, const v1::GenerateResponse& token) {
    choice.edges += token.edges().edges();
    choice.pairs += static_cast<double>(token.edges().pairs());
    choice.budget = token.edges().budget();
    choice.capped |= token.edges().capped();
    if (token.done()) choice.last = token;
    const uint64_t before = choice.logprobs.bytes();
    choice.logprobs.Add(token);
    if (!stream_) {
      choice.text += token.text();
      if (!choice.logprobs.wanted()) return;
      const absl::Status held = choice.memory.Resize(choice.memory.bytes() + choice.logprobs.bytes() - before);
      if (!held.ok()) Fail(held);
      return;
    }
    const absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return;
    if (!std::exchange(began_, true)) exchange_->Begin("text/event-stream");
    if (chat_ && !std::exchange(choice.began, true)) {
      SendChunk([&](JsonOut& json) {
        BeginChoice(choice.index, json);
        json.Key("delta").BeginObject().Key("role").String("assistant").Key("content").String("").EndObject();
        EndChoice(nullptr, json);
      });
    }
    if (!token.text().empty() || choice.logprobs.wanted()) {
      SendChunk([&](JsonOut& json) {
        BeginChoice(choice, json);
        WriteText(token.text(), json);
        EndChoice(nullptr, json);
      });
    }
    if (token.done()) {
      SendChunk([&](JsonOut& json) {
        BeginChoice(choice.index, json);
        WriteText("", json);
        EndChoice(&choice, json);
      });
    }
  }

 private:
  void Score(v1::GenerateRequest& request) {
    EchoedPrompt& echo = echoes_.emplace_back(*exchange_->account);
    const int index = static_cast<int>(echoes_.size()) - 1;
    const absl::Status held = echo.sent_memory.Resize(request.ByteSizeLong());
    if (!held.ok()) return OnEnd(index, held);
    echo.sent = request.prompt().text();
    v1::PredictRequest score;
    score.set_model(request.model());
    score.set_version(request.version());
    v1::Sequence& prompt = *score.add_inputs()->mutable_sequence();
    prompt.Swap(request.mutable_prompt());
    if (request.has_budget()) *score.mutable_budget() = request.budget();
    if (request.has_ensemble()) *score.mutable_ensemble() = request.ensemble();
    if (request.has_override()) *score.mutable_override() = request.override();
    score.set_profile(request.profile());
    score.set_priority(request.priority());
    score.set_request_id(request.request_id());
    score.mutable_outputs()->set_token_scores(true);
    score.mutable_outputs()->set_alternatives(request.alternatives());
    Ticket ticket = TicketOf(*exchange_, Rpc::kPredict, echo.memory);
    ticket.response = &echo.response;
    ticket.reply = [self = shared_from_this(), index](const absl::Status& status) { self->OnEnd(index, status); };
    parts_.handler.Start(score, std::move(ticket));
    prompt.Swap(request.mutable_prompt());
  }

  // A request for this prompt has ended.
  void OnEnd(int prompt, const absl::Status& status) {
    if (!status.ok()) Fail(Renamed(status, [&](const std::string& field) { return NameHere(prompt, field); }));
    bool last = false;
    {
      const absl::MutexLock lock(&mutex_);
      last = --open_ == 0;
    }
    if (last) Finish();
  }

  // "prompt.text", or "inputs[0].sequence.text" of one that is scored, is "prompt", or "prompt[1]".
  std::string NameHere(int prompt, const std::string& field) const {
    for (const char* content : {"prompt.text", "prompt.token_ids", "inputs[0].sequence.text",
                                "inputs[0].sequence.token_ids", "inputs[0].sequence", "inputs[0]", "prompt"}) {
      if (chat_ || !absl::StartsWith(field, content)) continue;
      const bool one = choices_.size() == static_cast<size_t>(of_prompt_);
      return absl::StrCat("prompt", one ? "" : absl::StrCat("[", prompt, "]"),
                          field.substr(std::string_view(content).size()));
    }
    return NameInBody(field);
  }

  // Ends all choices.
  void Fail(const absl::Status& status) {
    const absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return;
    failure_ = status;
    exchange_->cancelled.request_stop();
    parts_.handler.Wake();
  }

  void Finish() {
    const absl::MutexLock lock(&mutex_);
    if (!failure_.ok() && began_) {
      exchange_->Send(absl::StrCat("data: ", OpenAiError(failure_, HttpCodeOf(failure_)), "\n\n"));
      return exchange_->End(failure_);
    }
    if (!failure_.ok()) return exchange_->Refuse(failure_);
    if (!stream_) return IsLong() ? line_->Add([self = shared_from_this()] { self->AnswerWhole(); }) : AnswerWhole();
    if (usage_) {
      JsonOut json;
      BeginObject(".chunk", json);
      json.Key("choices").BeginArray().EndArray();
      WriteUsage(json);
      WriteOrigin(json);
      json.EndObject();
      exchange_->Send(absl::StrCat("data: ", json.text(), "\n\n"));
    }
    exchange_->Send("data: [DONE]\n\n");
    exchange_->End();
  }

  // Whether the whole answer is long.
  bool IsLong() const {
    uint64_t bytes = 0;
    for (const Choice& choice : choices_) bytes += choice.text.size() + choice.logprobs.bytes();
    for (const EchoedPrompt& echo : echoes_) bytes += static_cast<uint64_t>(of_prompt_) * echo.response.ByteSizeLong();
    return bytes > kShortAnswer;
  }

  // The prompts before what was written.
  absl::Status AddEchoes() {
    uint64_t bytes = 0;
    for (const EchoedPrompt& echo : echoes_) bytes += echo.response.ByteSizeLong();
    RETURN_IF_ERROR(exchange_->ExpectJson(bytes * static_cast<uint64_t>(of_prompt_)));
    for (Choice& choice : choices_) {
      const EchoedPrompt& echo = echoes_[static_cast<size_t>(choice.index / of_prompt_)];
      choice.text.insert(0, echo.Text());
      Logprobs prompt(false, choice.logprobs.wanted());
      for (const v1::TokenScore& token : echo.response.predictions(0).token_scores()) prompt.Add(token);
      choice.logprobs.Prepend(prompt);
      choice.prompt = &echo.response.predictions(0);
      if (choice.last.done()) continue;
      choice.last.set_finish_reason("length");  // nothing was written
      choice.last.set_prompt_tokens(static_cast<uint32_t>(echo.response.input_tokens()));
      choice.last.set_seed(echo.response.seed());
      choice.last.set_version(echo.response.version());
      choice.last.set_device(echo.response.device());
    }
    return absl::OkStatus();
  }

  // All requests have ended: nobody else is here.
  void AnswerWhole() {
    if (!echoes_.empty()) {
      if (const absl::Status status = AddEchoes(); !status.ok()) return exchange_->Refuse(status);
    }
    JsonOut json(*exchange_);
    BeginObject("", json);
    json.Key("choices").BeginArray();
    for (Choice& choice : choices_) {
      BeginChoice(choice, json);
      if (chat_) {
        json.Key("message")
            .BeginObject()
            .Key("role")
            .String("assistant")
            .Key("content")
            .String(choice.text)
            .EndObject();
      } else {
        json.Key("text").String(choice.text);
      }
      EndChoice(&choice, json);
    }
    json.EndArray();
    WriteUsage(json);
    WriteOrigin(json);
    json.EndObject();
    exchange_->AnswerJson(json);
  }

  template <typename WriteChoice>
  void SendChunk(WriteChoice write) {
    JsonOut json;
    BeginObject(".chunk", json);
    json.Key("choices").BeginArray();
    write(json);
    json.EndArray();
    if (usage_) json.Key("usage").Null();
    json.EndObject();
    exchange_->Send(absl::StrCat("data: ", json.text(), "\n\n"));
  }

  // `chunk`: the end of the object's name, of a chat.
  void BeginObject(const char* chunk, JsonOut& json) const {
    json.BeginObject().Key("id").String(id_).Key("object");
    json.String(chat_ ? absl::StrCat("chat.completion", chunk) : "text_completion");
    json.Key("created").Integer(created_).Key("model").String(model_);
  }
  static void BeginChoice(int index, JsonOut& json) {
    json.BeginObject().Key("index").Integer(index).Key("logprobs").Null();
  }
  // With the log-probabilities that are not sent yet.
  static void BeginChoice(Choice& choice, JsonOut& json) {
    json.BeginObject().Key("index").Integer(choice.index).Key("logprobs");
    choice.logprobs.Write(json);
  }
  void WriteText(const std::string& text, JsonOut& json) const {
    if (!chat_) {
      json.Key("text").String(text);
      return;
    }
    json.Key("delta").BeginObject();
    if (!text.empty()) json.Key("content").String(text);
    json.EndObject();
  }
  // `ended`: the choice, where it has ended.
  static void EndChoice(const Choice* ended, JsonOut& json) {
    json.Key("finish_reason");
    if (ended == nullptr) {
      json.Null().EndObject();
      return;
    }
    json.String(ended->last.finish_reason()).Key("edgewise").BeginObject();
    WriteEdges(ended->edges, ended->pairs, ended->budget, ended->capped, json);
    json.Key("seed").Unsigned(ended->last.seed());
    if (const v1::Prediction* const prompt = ended->prompt) {
      const v1::EdgeReport& edges = prompt->edges();
      json.Key("prompt").BeginObject();
      WriteEdges(edges.edges(), static_cast<double>(edges.pairs()), edges.budget(), edges.capped(), json);
      json.Key("log_likelihood").Number(prompt->log_likelihood()).EndObject();
    }
    json.EndObject().EndObject();
  }
  void WriteUsage(JsonOut& json) const {
    uint64_t prompt = 0, written = 0;
    for (const Choice& choice : choices_) {
      if (choice.index % of_prompt_ == 0) prompt += choice.last.prompt_tokens();
      written += choice.last.generated_tokens();
    }
    json.Key("usage").BeginObject().Key("prompt_tokens").Unsigned(prompt);
    json.Key("completion_tokens").Unsigned(written).Key("total_tokens").Unsigned(prompt + written).EndObject();
  }
  void WriteOrigin(JsonOut& json) const {
    const v1::GenerateResponse& last = choices_.front().last;
    json.Key("edgewise").BeginObject().Key("version").Integer(last.version());
    json.Key("device").String(last.device()).EndObject();
  }

  CallParts& parts_;
  const std::shared_ptr<Exchange> exchange_;
  const bool chat_, stream_, usage_;
  const std::string model_;
  const int of_prompt_;                     // choices of one prompt, next to each other
  const std::shared_ptr<AnswerLine> line_;  // of the choices, not of the scores: AnswerLine::idle
  const std::string id_;
  const int64_t created_;
  std::deque<Choice> choices_;
  std::deque<EchoedPrompt> echoes_;  // of each prompt, or none
  absl::Mutex mutex_;
  size_t open_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the first
  bool began_ ABSL_GUARDED_BY(mutex_) = false;    // the stream
};

bool Choice::ready() const { return all.ready(); }
void Choice::Send(std::unique_ptr<v1::GenerateResponse> message) { all.OnToken(*this, *message); }

void Serve(CallParts& parts, const std::shared_ptr<Exchange>& exchange, bool chat) {
  http::OpenAiGeneration body;
  absl::StatusOr<GenerationPlan> plan;
  absl::Status status =
      ReadJson(exchange->request.body, JsonDialect::kPlain, body, exchange->body_memory, parts.options.limits);
  exchange->request.body = std::string();
  if (status.ok()) {
    plan = ParseGeneration(body, chat, parts.options.limits);
    status = plan.status();
  }
  // Of prompts that are repeated alone, nothing else looks at it.
  if (status.ok()) status = Renamed(CheckSampling(plan->request), NameInBody);
  if (!status.ok()) {
    parts.handler.Name(exchange->call, ParseModelName(body.model()).value_or(ModelName()).name);
    return exchange->Refuse(status);
  }
  const MemoryHold held = std::move(exchange->body_memory);  // the reply may come first, on another thread
  std::make_shared<Generations>(parts, exchange, body, chat, plan->n)->Start(*plan);
}

}  // namespace

void AddOpenAiGeneration(Routes& routes, CallParts& parts) {
  // Without a stream.
  const auto shape = [](const char* text) {
    return absl::StrCat(R"({"id":"string","object":"string","created":"integer","model":"string",
        "choices":[{"index":"integer","logprobs":"object|null","finish_reason":"string",)",
                        text, R"("edgewise":{)", kEdgesShape, R"(,"seed":"integer","prompt?":{)", kEdgesShape,
                        R"(,"log_likelihood":"number"}}}],
        "usage":{"prompt_tokens":"integer","completion_tokens":"integer","total_tokens":"integer"},
        "edgewise":{"version":"integer","device":"string"}})");
  };
  for (const bool chat : {false, true}) {
    routes.Add({.method = "POST",
                .path = chat ? "/v1/chat/completions" : "/v1/completions",
                .error = OpenAiError,
                .rpc = Rpc::kGenerate,
                .body = http::OpenAiGeneration::descriptor(),
                .answer = shape(chat ? R"("message":{"role":"string","content":"string"},)" : R"("text":"string",)"),
                .serve = [&parts, chat](const std::shared_ptr<Exchange>& exchange) { Serve(parts, exchange, chat); }});
  }
}

}  // namespace edgewise::server
