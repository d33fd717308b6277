// Routes of TEI that compute nothing: /tokenize, /decode and /info.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/config/config.h"
#include "server/base/build_id.h"
#include "server/handler/request_bounds.h"
#include "server/http/json_out.h"
#include "server/http/tei.h"

namespace edgewise::server {
namespace {

constexpr uint64_t kBytesOfToken = 240;  // its JSON while it grows, beside its text
constexpr uint64_t kJsonOfByte = 6;      // a control character is six

// Chooses a model with a tokenizer for the elements of `field`. False: the request was refused.
template <typename Body>
bool Choose(const TeiCall& call, const Body& body, int count, const char* field, ChosenModel& chosen) {
  static constexpr const ModelUse* kUses[] = {&kTokenizes};
  HttpRefusal refusal = ChooseModel(call.parts.repository, body.model(), kUses, &chosen);
  if (refusal.code == 0) refusal = CheckCount(call, count, field);
  if (refusal.code != 0) {
    RefuseTei(call, refusal, body.model());
    return false;
  }
  call.parts.handler.Name(call.exchange->call, chosen.name.name, chosen.name.version);
  return true;
}

// Answers with the JSON, unless `status` is an error.
void Finish(const TeiCall& call, const absl::Status& status, JsonOut& json) {
  if (!status.ok()) return call.exchange->Refuse(HttpRefusal{TeiCodeOf(status), status});
  call.exchange->body_memory.Shrink(0);
  call.exchange->AnswerJson(json);
}

// `text` is as the tokenizer read it. `start` and `stop` count its characters; special tokens have none.
absl::Status WriteTokens(const Encoding& encoding, const std::string& text, const HfTokenizer& tokenizer,
                         MemoryHold& memory, JsonOut& json) {
  RETURN_IF_ERROR(memory.Resize(memory.bytes() + kBytesOfToken * encoding.size() + kJsonOfByte * text.size()));
  json.BeginArray();
  size_t byte = 0, characters = 0;  // of `text`, up to the beginning of the last token
  for (size_t i = 0; i < encoding.size(); ++i) {
    const int32_t id = encoding.ids[i];
    const std::string* token = tokenizer.Token(id);
    const bool special = encoding.sequences[i] < 0;
    json.BeginObject().Key("id").Integer(id).Key("text");
    if (special) {
      json.String(token != nullptr ? *token : "").Key("special").Bool(true);
      json.Key("start").Null().Key("stop").Null().EndObject();
      continue;
    }
    const size_t begin = encoding.offsets[i].begin, size = encoding.offsets[i].end - begin;
    if (begin < byte) byte = characters = 0;
    characters += CountCharacters(std::string_view(text).substr(byte, begin - byte));
    byte = begin;
    const std::string_view part = std::string_view(text).substr(begin, size);
    json.String(part).Key("special").Bool(false).Key("start").Unsigned(characters);
    json.Key("stop").Unsigned(characters + CountCharacters(part)).EndObject();
  }
  json.EndArray();
  return absl::OkStatus();
}

// The text of the prompt that goes before the texts; null: none.
absl::StatusOr<const std::string*> PromptOf(const http::TeiTokenize& body, const ModelConfig& config) {
  const std::string& name = body.has_prompt_name() ? body.prompt_name() : config.default_prompt;
  if (name.empty()) return nullptr;
  const auto prompt = config.prompts.find(name);
  REFUSE_IF(prompt == config.prompts.end(), "prompt_name", "is ", Quoted(name), "; the model has ",
            config.prompts.empty() ? "no prompts" : "others");
  return &prompt->second.text;
}

absl::Status WriteAllTokens(const TeiCall& call, http::TeiTokenize& body, const LoadedModel& model, JsonOut& json) {
  const HfTokenizer& tokenizer = *model.model->tokenizer();
  REFUSE_IF(body.inputs().ids_size() > 0 || body.inputs().parts_size() > 0, "inputs",
            body.inputs().ids_size() > 0 ? "has token ids" : "has objects", "; expected a text, or a list of texts");
  REFUSE_IF(body.inputs().texts().empty(), "inputs", "is missing or empty");
  ASSIGN_OR_RETURN(const std::string* const prompt, PromptOf(body, model.model->config()));
  const EncodeOptions options{.add_special_tokens = !body.has_add_special_tokens() || body.add_special_tokens()};
  const Ticket ticket = TicketOf(*call.exchange, Rpc::kPredict, call.exchange->memory);
  RequestBounds bounds(ticket, [&] { return CheckWanted(call); });
  json.BeginArray();
  for (int i = 0; i < body.inputs().texts_size(); ++i) {
    std::string& text = *body.mutable_inputs()->mutable_texts(i);
    if (prompt != nullptr) {
      MemoryHold& memory = call.exchange->memory;
      RETURN_IF_ERROR(memory.Resize(memory.bytes() + prompt->size()));
      text.insert(0, *prompt);
    }
    absl::StatusOr<Encoding> encoding = tokenizer.Encode(text, options, bounds);
    if (!encoding.ok()) return Within(absl::StrCat("inputs[", i, "]"), encoding.status());
    RETURN_IF_ERROR(WriteTokens(*encoding, text, tokenizer, call.exchange->memory, json));
  }
  json.EndArray();
  return absl::OkStatus();
}

void Tokenize(const TeiCall& call) {
  http::TeiTokenize body;
  ChosenModel chosen;
  if (!ReadTeiBody(call, body) || !Choose(call, body, body.inputs().texts_size(), "inputs", chosen)) return;
  JsonOut json(*call.exchange);
  Finish(call, WriteAllTokens(call, body, *chosen.loaded, json), json);
}

absl::Status WriteTexts(const TeiCall& call, const http::TeiDecode& body, const HfTokenizer& tokenizer, JsonOut& json) {
  const auto& lists = body.ids().ids();
  REFUSE_IF(body.ids().texts_size() > 0 || body.ids().parts_size() > 0, "ids",
            body.ids().texts_size() > 0 ? "has texts" : "has objects", "; expected token ids, or lists of them");
  REFUSE_IF(lists.empty(), "ids", "is missing or empty");
  MemoryHold& memory = call.exchange->memory;
  const Ticket ticket = TicketOf(*call.exchange, Rpc::kPredict, memory);
  RequestBounds bounds(ticket, [&] { return CheckWanted(call); });
  const bool skip = !body.has_skip_special_tokens() || body.skip_special_tokens();
  json.BeginArray();
  for (const v1::TokenIds& list : lists) {
    RETURN_IF_ERROR(bounds.Continue());
    ReservedBytes copy(bounds);
    RETURN_IF_ERROR(copy.Resize(sizeof(int32_t) * static_cast<uint64_t>(list.values_size())));
    ASSIGN_OR_RETURN(const std::string text,
                     tokenizer.Decode({list.values().begin(), list.values().end()}, skip, bounds));
    RETURN_IF_ERROR(bounds.Reserve((1 + kJsonOfByte) * text.size()));
    json.String(text);
  }
  json.EndArray();
  return absl::OkStatus();
}

void Decode(const TeiCall& call) {
  http::TeiDecode body;
  ChosenModel chosen;
  if (!ReadTeiBody(call, body) || !Choose(call, body, body.ids().ids_size(), "ids", chosen)) return;
  JsonOut json(*call.exchange);
  Finish(call, WriteTexts(call, body, *chosen.loaded->model->tokenizer(), json), json);
}

const char* PoolingName(Pooling pooling) {
  switch (pooling) {
    case Pooling::kMeanValid:
    case Pooling::kMeanMaxLength:
      return "mean";
    case Pooling::kCls:
    case Pooling::kFirst:
      return "cls";
    case Pooling::kLast:
      return "last_token";
  }
  return "";
}

void WriteModelType(const LoadedModel& model, JsonOut& json) {
  const ModelConfig& config = model.model->config();
  json.Key("model_type").BeginObject();
  if (kEmbeds.fits(model)) {
    json.Key("embedding").BeginObject().Key("pooling").String(PoolingName(config.pooling)).EndObject();
  } else {
    json.Key(kReranks.fits(model) ? "reranker" : "classifier").BeginObject().Key("id2label").BeginObject();
    for (int i = 0; i < config.num_labels; ++i) json.Key(absl::StrCat(i)).String(TeiLabel(config, i));
    json.EndObject().Key("label2id").BeginObject();
    for (int i = 0; i < config.num_labels; ++i) json.Key(TeiLabel(config, i)).Integer(i);
    json.EndObject().EndObject();
  }
  json.EndObject();
}

void Info(const TeiCall& call) {
  static constexpr const ModelUse* kUses[] = {&kComputes};
  ChosenModel chosen;
  const HttpRefusal refusal = ChooseModel(call.parts.repository, call.model, kUses, &chosen);
  if (refusal.code != 0) return RefuseTei(call, refusal, call.model);
  const LoadedModel& model = *chosen.loaded;
  const ServerOptions& options = call.parts.options;
  const std::string& device = model.model->backend().device();
  const std::string type = device.substr(device.rfind('/') + 1);  // "fp32"
  JsonOut json;
  json.BeginObject().Key("model_id").String(model.name).Key("model_sha").String(model.model->sha256());
  json.Key("model_dtype").String(type == "fp32" ? "float32" : type);
  WriteModelType(model, json);
  json.Key("max_concurrent_requests").Unsigned(options.queue.max_requests);
  json.Key("max_input_length").Integer(MostTextTokens(model.model->config()));
  json.Key("max_batch_tokens").Unsigned(options.queue.max_tokens);
  json.Key("max_batch_requests").Unsigned(options.queue.max_batch);
  json.Key("max_client_batch_size").Unsigned(options.limits.max_inputs).Key("auto_truncate").Bool(false);
  json.Key("tokenization_workers").Integer(LongWorkThreads::kThreads);
  json.Key("version").String(EDGEWISE_VERSION).Key("sha").String(BuildId()).Key("docker_label").Null();
  json.EndObject();
  call.exchange->AnswerJson(json.Take());
}

}  // namespace

void AddTeiTexts(Routes& routes, CallParts& parts) {
  struct Entry {
    const char *method, *path, *of_model;
    void (*serve)(const TeiCall& call);
    const google::protobuf::Descriptor* (*body)();
    const char* answer;
  };
  static constexpr Entry kEntries[] = {
      {"POST", "/tokenize", "/models/{}/tokenize", Tokenize, http::TeiTokenize::descriptor,
       R"([[{"id":"integer","text":"string","special":"boolean","start":"integer|null","stop":"integer|null"}]])"},
      {"POST", "/decode", "/models/{}/decode", Decode, http::TeiDecode::descriptor, R"(["string"])"},
      {"GET", "/info", "/models/{}/info", Info, nullptr,
       R"({"model_id":"string","model_sha":"string","model_dtype":"string","model_type":"object",
           "max_concurrent_requests":"integer","max_input_length":"integer","max_batch_tokens":"integer",
           "max_batch_requests":"integer","max_client_batch_size":"integer","auto_truncate":"boolean",
           "tokenization_workers":"integer","version":"string","sha":"string","docker_label":"null"})"}};
  for (const Entry& entry : kEntries) {
    for (const char* path : {entry.path, entry.of_model}) {
      routes.Add({.method = entry.method,
                  .path = path,
                  .error = TeiError,
                  .apart = true,  // short bodies may ask for much
                  .body = entry.body != nullptr ? entry.body() : nullptr,
                  .answer = entry.answer,
                  .serve = [&parts, serve = entry.serve](const std::shared_ptr<Exchange>& exchange) {
                    const std::vector<std::string>& arguments = exchange->request.arguments;
                    serve({parts, exchange, arguments.empty() ? "" : arguments[0]});
                  }});
    }
  }
}

}  // namespace edgewise::server
