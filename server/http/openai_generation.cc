// /v1/completions and /v1/chat/completions: runs the choices of a body beside each other, and writes their texts as one
// answer or as server-sent events.
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/http/json_in.h"
#include "server/http/openai.h"

namespace edgewise::server {
namespace {

class Generations;

// One choice. Its tokens come one at a time.
struct Choice final : TokenStream {
  Choice(Generations& all, int index, MemoryAccount& account) : memory(account), all(all), index(index) {}

  bool ready() const override;
  void Send(std::unique_ptr<v1::GenerateResponse> message) override;

  MemoryHold memory;  // of the request
  Generations& all;
  const int index;
  std::string text;  // where it is not streamed
  bool began = false;
  double edges = 0.0, pairs = 0.0;
  uint64_t budget = 0;
  bool capped = false;
  v1::GenerateResponse last;  // the message that is done
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
        id_(NewId(chat ? "chatcmpl-" : "cmpl-")),
        created_(UnixTime()) {}

  void Start(GenerationPlan& plan) {
    for (int i = 0; i < plan.choices(); ++i) choices_.emplace_back(*this, i, *exchange_->account);
    {
      const absl::MutexLock lock(&mutex_);
      open_ = choices_.size();
    }
    plan.request.set_request_id(exchange_->request.id.empty() ? id_ : exchange_->request.id);
    for (Choice& choice : choices_) {
      plan.Choose(choice.index);
      Ticket ticket = TicketOf(*exchange_, Rpc::kGenerate, choice.memory);
      ticket.stream = &choice;
      ticket.reply = [self = shared_from_this()](const absl::Status& status) { self->OnEnd(status); };
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
    if (!stream_) {
      choice.text += token.text();
      return;
    }
    const absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return;
    if (!std::exchange(began_, true)) exchange_->Begin("text/event-stream");
    if (chat_ && !std::exchange(choice.began, true)) {
      SendChunk([&](JsonOut& json) {
        BeginChoice(choice, json);
        json.Key("delta").BeginObject().Key("role").String("assistant").Key("content").String("").EndObject();
        EndChoice(nullptr, json);
      });
    }
    if (!token.text().empty()) {
      SendChunk([&](JsonOut& json) {
        BeginChoice(choice, json);
        WriteText(token.text(), json);
        EndChoice(nullptr, json);
      });
    }
    if (token.done()) {
      SendChunk([&](JsonOut& json) {
        BeginChoice(choice, json);
        WriteText("", json);
        EndChoice(&choice, json);
      });
    }
  }

 private:
  void OnEnd(const absl::Status& status) {
    bool last = false;
    {
      const absl::MutexLock lock(&mutex_);
      if (!status.ok() && failure_.ok()) {
        failure_ = status;
        exchange_->cancelled.request_stop();  // of the other choices
        parts_.handler.Wake();
      }
      last = --open_ == 0;
    }
    if (last) Finish();
  }

  void Finish() {
    const absl::MutexLock lock(&mutex_);
    if (!failure_.ok() && began_) {
      exchange_->Send(absl::StrCat("data: ", OpenAiError(failure_, HttpCodeOf(failure_)), "\n\n"));
      return exchange_->End();
    }
    if (!failure_.ok()) return exchange_->Refuse(failure_);
    if (!stream_) return AnswerWhole();
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

  void AnswerWhole() {
    JsonOut json;
    BeginObject("", json);
    json.Key("choices").BeginArray();
    for (const Choice& choice : choices_) {
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
    exchange_->AnswerJson(json.Take());
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
  static void BeginChoice(const Choice& choice, JsonOut& json) {
    json.BeginObject().Key("index").Integer(choice.index).Key("logprobs").Null();
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
    json.Key("seed").Unsigned(ended->last.seed()).EndObject().EndObject();
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
  const int of_prompt_;  // choices of one prompt, next to each other
  const std::string id_;
  const int64_t created_;
  std::deque<Choice> choices_;
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
  absl::Status status = ReadJson(exchange->request.body, JsonDialect::kPlain, body, exchange->body_memory);
  exchange->request.body = std::string();
  if (status.ok()) {
    plan = ParseGeneration(body, chat, parts.options.limits);
    status = plan.status();
  }
  if (!status.ok()) {
    v1::GenerateRequest named;  // for its metrics
    named.set_model(ParseModelName(body.model()).value_or(ModelName()).name);
    parts.handler.CountUnadmitted(named, status);
    return exchange->Refuse(status);
  }
  const MemoryHold held = std::move(exchange->body_memory);  // the reply may come first, on another thread
  std::make_shared<Generations>(parts, exchange, body, chat, plan->n)->Start(*plan);
}

}  // namespace

void AddOpenAiGeneration(Routes& routes, CallParts& parts) {
  for (const bool chat : {false, true}) {
    routes.Add({.method = "POST",
                .path = chat ? "/v1/chat/completions" : "/v1/completions",
                .error = OpenAiError,
                .rpc = Rpc::kGenerate,
                .serve = [&parts, chat](const std::shared_ptr<Exchange>& exchange) { Serve(parts, exchange, chat); }});
  }
}

}  // namespace edgewise::server
