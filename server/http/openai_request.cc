// Makes requests of ours of the bodies of completions and chat completions.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "server/http/json_scalar.h"
#include "server/http/openai.h"

namespace edgewise::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr uint64_t kStreamStep = 0x9E3779B97F4A7C15;    // between the seeds of choices: 2^64 over the golden ratio
constexpr uint64_t kMostOfDoubles = uint64_t{1} << 53;  // below it all integers are doubles, as clients may read them
constexpr uint64_t kMostChoices = 128;
constexpr uint32_t kMostLogprobs = 20;
// Fields that are taken, whatever their value is: it changes nothing.
constexpr const char* kIgnored[] = {"user",
                                    "metadata",
                                    "store",
                                    "service_tier",
                                    "safety_identifier",
                                    "prompt_cache_key",
                                    "prompt_cache_options",
                                    "prompt_cache_retention",
                                    "parallel_tool_calls",
                                    "tool_call_id",
                                    "name"};
// Fields of what is not served, and their values that ask for nothing.
struct Neutral {
  const char* field;
  const char* values;  // with " or " between them
};
constexpr Neutral kNeutral[] = {{"response_format", R"({"type":"text"})"},
                                {"tool_choice", R"("none" or "auto")"},
                                {"logit_bias", "{}"},
                                {"best_of", "1"},
                                {"suffix", R"("")"},
                                {"modalities", R"(["text"])"},
                                {"functions", "[]"},
                                {"function_call", R"("none" or "auto" or {})"},
                                {"tools", "[]"},
                                {"chat_template_kwargs", "{}"},
                                {"tool_calls", "[]"},
                                {"annotations", "[]"}};

// The text of a number that is an integer without its fraction, "2" for "2.0"; other texts as they are.
std::string Whole(const std::string& text) {
  double number = 0.0;
  const bool small = absl::SimpleAtod(text, &number) && std::abs(number) < static_cast<double>(kMostOfDoubles);
  return small && number == std::floor(number) ? absl::StrCat(static_cast<int64_t>(number)) : text;
}

// Refuses the fields of type Json that ask for something, but for `taken`.
absl::Status CheckNeutral(const Message& message, const std::string& path, std::span<const char* const> taken = {}) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->message_type() != http::Json::descriptor()) continue;
    const std::string& name = field->name();
    const auto is_it = [&](const char* other) { return name == other; };
    if (std::any_of(std::begin(kIgnored), std::end(kIgnored), is_it)) continue;
    if (std::any_of(taken.begin(), taken.end(), is_it)) continue;
    const std::string text =
        Whole(static_cast<const http::Json&>(message.GetReflection()->GetMessage(message, field)).text());
    const auto neutral = std::find_if(std::begin(kNeutral), std::end(kNeutral),
                                      [&](const Neutral& entry) { return is_it(entry.field); });
    if (neutral == std::end(kNeutral)) return FieldError(absl::StrCat(path, name), "is not served; leave it out");
    const std::vector<std::string> values = absl::StrSplit(neutral->values, " or ");
    if (std::find(values.begin(), values.end(), text) != values.end()) continue;
    return FieldError(absl::StrCat(path, name),
                      absl::StrCat("is ", Quoted(text), ", which is not served; allowed is ", neutral->values));
  }
  return absl::OkStatus();
}

// Takes the text out of the content.
absl::StatusOr<std::string> TakeText(http::Content& content, const std::string& field) {
  REFUSE_IF(content.ids_size() > 0, field, "has token ids; text is expected");
  if (content.parts_size() == 0) {
    REFUSE_IF(content.list() && content.texts_size() > 0, field,
              "is a list of strings; a string or a list of parts is expected");
    return content.texts_size() > 0 ? std::move(*content.mutable_texts(0)) : std::string();
  }
  std::string text;
  for (int i = 0; i < content.parts_size(); ++i) {
    const http::Part& part = content.parts(i);
    REFUSE_IF(part.type() != "text", absl::StrCat(field, "[", i, "].type"), "is ", Quoted(part.type()),
              "; parts of text are taken, no others");
    absl::StrAppend(&text, i == 0 ? "" : "\n", part.text());
  }
  return text;
}

// Takes the messages out of the body.
absl::Status TakeMessages(http::OpenAiGeneration& body, v1::GenerateRequest& request) {
  REFUSE_IF(body.has_prompt(), "prompt", "is of /v1/completions; give messages");
  REFUSE_IF(body.messages().empty(), "messages", "is missing or empty");
  for (int i = 0; i < body.messages_size(); ++i) {
    http::OpenAiMessage& message = *body.mutable_messages(i);
    const std::string path = absl::StrCat("messages[", i, "]");
    RETURN_IF_ERROR(CheckNeutral(message, path + "."));
    ASSIGN_OR_RETURN(std::string text, TakeText(*message.mutable_content(), path + ".content"));
    v1::ChatMessage& ours = *request.add_messages();
    ours.set_role(message.role() == "developer" ? "system" : message.role());
    ours.set_content(std::move(text));
  }
  std::string arguments = std::move(*body.mutable_chat_template_kwargs()->mutable_text());
  REFUSE_IF(!arguments.empty() && arguments[0] != '{', "chat_template_kwargs", "is ", KindOfJson(arguments),
            "; expected an object");
  const std::string& tools = body.tools().text();
  REFUSE_IF(!tools.empty() && tools[0] != '[', "tools", "is ", KindOfJson(tools), "; expected a list");
  if (!tools.empty() && tools != "[]") {
    if (arguments.empty()) arguments = "{}";
    arguments.pop_back();
    absl::StrAppend(&arguments, arguments.size() > 1 ? "," : "", "\"tools\":", tools, "}");
  }
  body.clear_tools();
  request.set_template_arguments(std::move(arguments));
  return absl::OkStatus();
}

// One sequence for each prompt, taken out of the body.
absl::StatusOr<std::vector<v1::Sequence>> TakePrompts(http::OpenAiGeneration& body) {
  REFUSE_IF(!body.messages().empty(), "messages", "is of /v1/chat/completions; give a prompt");
  REFUSE_IF(body.prompt().parts_size() > 0, "prompt", "has objects; texts or token ids are expected");
  std::vector<v1::Sequence> prompts;
  http::Content& content = *body.mutable_prompt();
  for (std::string& text : *content.mutable_texts()) prompts.emplace_back().set_text(std::move(text));
  for (v1::TokenIds& ids : *content.mutable_ids()) prompts.emplace_back().mutable_token_ids()->Swap(&ids);
  REFUSE_IF(prompts.empty(), "prompt", "is missing or empty");
  return prompts;
}

absl::Status SetSampling(const http::OpenAiGeneration& body, const RequestLimits& limits,
                         v1::GenerateRequest& request) {
  const bool two = body.has_max_tokens() && body.has_max_completion_tokens();
  REFUSE_IF(two && body.max_tokens() != body.max_completion_tokens(), "max_tokens", "is ", body.max_tokens(),
            " beside max_completion_tokens ", body.max_completion_tokens(), "; give one of them");
  request.set_max_new_tokens(body.has_max_completion_tokens() ? body.max_completion_tokens()
                             : body.has_max_tokens()          ? body.max_tokens()
                                                              : limits.max_new_tokens);
  request.set_overflow(v1::STOP);
  request.set_temperature(body.has_temperature() ? body.temperature() : 1.0);
  request.set_top_k(body.edgewise().top_k());
  request.set_min_p(body.edgewise().min_p());
  request.set_presence_penalty(body.presence_penalty());
  request.set_frequency_penalty(body.frequency_penalty());
  if (body.edgewise().has_repetition_penalty()) {
    request.set_repetition_penalty(body.edgewise().repetition_penalty());
  }
  const double top_p = body.has_top_p() ? body.top_p() : 1.0;
  // Ours is off at 0, and 1 leaves out what rounding leaves out.
  request.set_top_p(top_p == 1.0 ? 0.0 : top_p == 0.0 ? std::numeric_limits<double>::min() : top_p);
  REFUSE_IF(body.stop().ids_size() > 0 || body.stop().parts_size() > 0, "stop", "has ",
            body.stop().ids_size() > 0 ? "numbers" : "objects", "; expected a string or a list of strings");
  *request.mutable_stop() = body.stop().texts();
  if (!body.has_seed()) return absl::OkStatus();
  const std::string text = Whole(body.seed().text());
  uint64_t seed = 0;
  int64_t negative = 0;
  const bool valid = absl::SimpleAtoi(text, &seed) || absl::SimpleAtoi(text, &negative);
  REFUSE_IF(!valid || text[0] == '"', "seed", "is ", Quoted(text), "; expected an integer of 64 bits");
  if (negative < 0) seed = static_cast<uint64_t>(negative);
  REFUSE_IF(body.edgewise().has_seed() && body.edgewise().seed() != seed, "seed", "is ", text,
            " beside another edgewise.seed; give one of them");
  request.mutable_ensemble()->set_seed(seed);
  return absl::OkStatus();
}

// Whether there are log-probabilities; sets the alternatives beside each.
absl::StatusOr<bool> SetLogprobs(const http::OpenAiGeneration& body, bool chat, v1::GenerateRequest& request) {
  const std::string asked = Whole(body.logprobs().text());
  const bool none = asked.empty() || asked == "false";
  uint32_t count = body.top_logprobs();
  if (chat) {
    REFUSE_IF(!none && asked != "true", "logprobs", "is ", Quoted(asked), "; allowed are true and false");
    REFUSE_IF(none && count > 0, "top_logprobs", "is ", count, " without logprobs; set logprobs to true");
  } else {
    REFUSE_IF(body.has_top_logprobs() && count > 0, "top_logprobs",
              "is of /v1/chat/completions; logprobs is the number here");
    REFUSE_IF(!none && !absl::SimpleAtoi(asked, &count), "logprobs", "is ", Quoted(asked), "; allowed are 0 to 20");
  }
  const char* const field = chat ? "top_logprobs" : "logprobs";
  REFUSE_IF(count > kMostLogprobs, field, "is ", count, "; allowed are 0 to ", kMostLogprobs);
  request.set_alternatives(count);
  return !none;
}

}  // namespace

absl::StatusOr<GenerationPlan> ParseGeneration(http::OpenAiGeneration& body, bool chat, const RequestLimits& limits) {
  static constexpr const char* kTaken[] = {"seed", "logprobs", "tools",
                                           "chat_template_kwargs"};  // the last two of a chat
  RETURN_IF_ERROR(CheckNeutral(body, "", std::span(kTaken).first(chat ? 4 : 2)));
  REFUSE_IF(body.has_stream_options() && !body.stream(), "stream_options", "is set; it goes with stream");
  ASSIGN_OR_RETURN(const ModelName model, ParseModelName(body.model()));
  GenerationPlan plan;
  v1::GenerateRequest& request = plan.request;
  request.set_model(model.name);
  request.set_version(model.version);
  RETURN_IF_ERROR(SetOptions(body.edgewise(), request));
  RETURN_IF_ERROR(SetSampling(body, limits, request));
  ASSIGN_OR_RETURN(plan.logprobs, SetLogprobs(body, chat, request));
  plan.echo = body.echo();
  REFUSE_IF(plan.echo && chat, "echo", "is of /v1/completions; a chat has no prompt to repeat");
  REFUSE_IF(plan.echo && body.stream(), "echo", "is set beside stream; leave one of them out");
  RETURN_IF_ERROR(CheckTruncate(body.edgewise()));
  const v1::Truncate truncate = body.edgewise().truncate();
  REFUSE_IF(truncate != v1::REFUSE && chat, "edgewise.truncate", "is of /v1/completions; a chat is not cut");
  REFUSE_IF(truncate != v1::REFUSE && plan.echo, "edgewise.truncate",
            "is set beside echo, which repeats the whole prompt; leave one of them out");
  if (truncate != v1::REFUSE) {  // a prompt that was cut fills the context
    REFUSE_IF(!body.has_max_tokens() && !body.has_max_completion_tokens(), "max_tokens",
              "is missing; beside edgewise.truncate the text does not end with the context");
    request.set_overflow(v1::HALVE);
  }
  if (chat) {
    RETURN_IF_ERROR(TakeMessages(body, request));
  } else {
    ASSIGN_OR_RETURN(plan.prompts, TakePrompts(body));
    for (v1::Sequence& prompt : plan.prompts) prompt.set_truncate(truncate);
  }
  const uint64_t n = body.has_n() ? body.n() : 1, prompts = std::max<uint64_t>(1, plan.prompts.size());
  REFUSE_IF(n < 1 || n * prompts > kMostChoices, "n", "is ", n, " for ", prompts, " prompts; allowed are 1 to ",
            kMostChoices, " choices in all");
  plan.n = static_cast<int>(n);
  plan.seed = request.ensemble().has_seed() ? request.ensemble().seed()
                                            : absl::Uniform<uint64_t>(absl::BitGen(), 0, kMostOfDoubles);
  return plan;
}

void GenerationPlan::Choose(int choice) {
  if (!prompts.empty() && choice % n == 0) request.mutable_prompt()->Swap(&prompts[static_cast<size_t>(choice / n)]);
  const auto step = static_cast<uint64_t>(choice % n);
  if (n > 1) request.mutable_ensemble()->set_seed(step == 0 ? seed : (seed + step * kStreamStep) % kMostOfDoubles);
}

}  // namespace edgewise::server
