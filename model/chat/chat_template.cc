#include "model/chat/chat_template.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "model/chat/date.h"
#include "model/chat/lexer.h"
#include "model/chat/operations.h"

namespace edgewise::chat {
namespace {

constexpr size_t kMaxAttributes = 64;  // of a namespace
constexpr size_t kMaxMessage = 1000;   // bytes of an error's message
constexpr size_t kBytesOfStep = 64;    // of text, as ChatTemplate::kMaxWork counts them
constexpr size_t kNamesOfStep = 8;     // of a mapping in which one is looked for
// Bytes of an entry of a list, and of a message beside its texts.
constexpr size_t kBytesOfEntry = 64, kBytesOfMessage = 512;

// Clients and logs get it: what a template quotes may be long.
absl::Status Shortened(const absl::Status& status) {
  std::string message(status.message());
  if (message.size() <= kMaxMessage) return status;
  size_t end = kMaxMessage;
  while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
  return absl::Status(status.code(), absl::StrCat(message.substr(0, end), "..."));
}

// One rendering.
class Renderer {
 public:
  Renderer(std::map<std::string, Value> variables, absl::CivilSecond now, WorkBounds& bounds)
      : now_(now), meter_(bounds), held_(bounds) {
    scopes_.push_back(std::move(variables));
  }

  absl::Status Run(const std::vector<Statement>& statements) {
    for (const Statement& statement : statements) {
      line_ = statement.line;
      RETURN_IF_ERROR(Charge(1));
      switch (statement.kind) {
        case Statement::kText:
          RETURN_IF_ERROR(Print(statement.text));
          break;
        case Statement::kOutput: {
          ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value));
          ASSIGN_OR_RETURN(const std::string text, Placed(TextOf(value)));
          RETURN_IF_ERROR(Print(text));
          break;
        }
        case Statement::kIf: {
          ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value));
          RETURN_IF_ERROR(Run(value.IsTrue() ? statement.body : statement.otherwise));
          break;
        }
        case Statement::kFor:
          RETURN_IF_ERROR(Loop(statement));
          break;
        case Statement::kGeneration:  // it marks what the assistant says; names set in it end with it
          scopes_.emplace_back();
          RETURN_IF_ERROR(Run(statement.body));
          scopes_.pop_back();
          break;
        case Statement::kSet:
          RETURN_IF_ERROR(Set(statement));
          break;
      }
    }
    return absl::OkStatus();
  }

  std::string TakeText() { return std::move(out_); }

 private:
  absl::Status Error(const std::string& message) const { return ErrorAt(line_, message); }
  template <typename T>
  absl::StatusOr<T> Placed(absl::StatusOr<T> result) const {
    if (!result.ok())
      return absl::Status(result.status().code(), Error(std::string(result.status().message())).message());
    return result;
  }

  absl::Status Charge(size_t work) {
    work_ += static_cast<int64_t>(work);
    if (work_ <= ChatTemplate::kMaxWork) return meter_.Charge(kBytesOfStep * work);
    return absl::InvalidArgumentError(
        absl::StrCat("line ", line_, ": the template takes more than ", ChatTemplate::kMaxWork, " steps"));
  }
  // Bytes that the template makes count until the end, whoever holds them by then.
  absl::Status Hold(size_t bytes) { return bytes > 0 ? held_.Resize(held_.bytes() + bytes) : absl::OkStatus(); }
  absl::Status HoldNew(const Value& made) {
    if (made.text() != nullptr) return Hold(made.text()->size());
    if (made.list() == nullptr) return absl::OkStatus();
    size_t bytes = made.list()->size() * kBytesOfEntry;
    for (const Value& entry : *made.list()) bytes += entry.text() != nullptr ? entry.text()->size() : 0;
    return Hold(bytes);
  }
  // `deep`: what a list or a mapping holds is read too. Values are nested as deeply as arguments may be, or a few more.
  absl::Status ChargeFor(const Value& value, bool deep) {
    if (value.text() != nullptr) return Charge(value.text()->size() / kBytesOfStep);
    if (value.list() != nullptr) {
      RETURN_IF_ERROR(Charge(value.list()->size()));
      if (!deep) return absl::OkStatus();
      for (const Value& entry : *value.list()) RETURN_IF_ERROR(ChargeFor(entry, true));
    }
    if (value.map() != nullptr) {
      const auto& entries = value.map()->entries;
      if (!deep) return Charge(entries.size() / kNamesOfStep);
      if (value.map()->is_namespace) return absl::OkStatus();
      RETURN_IF_ERROR(Charge(entries.size()));
      for (const auto& [key, entry] : entries) {
        RETURN_IF_ERROR(Charge(key.size() / kBytesOfStep));
        RETURN_IF_ERROR(ChargeFor(entry, true));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Print(const std::string& text) {
    RETURN_IF_ERROR(Charge(text.size() / kBytesOfStep));
    if (out_.size() + text.size() > kMaxText) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", line_, ": the prompt is longer than ", kMaxText, " bytes"));
    }
    if (out_.size() + text.size() > out_.capacity()) {
      const size_t grown = std::max(2 * out_.capacity(), out_.size() + text.size());
      RETURN_IF_ERROR(Hold(grown));  // the old one is counted on: at most as much again
      out_.reserve(grown);
    }
    out_ += text;
    return absl::OkStatus();
  }

  // Values that hold others hold no namespace, which could hold them, and lists that a template writes hold no lists:
  // so none is nested much deeper than the arguments are.
  absl::Status CheckHeld(const Value& value, bool lists) const {
    if (value.map() != nullptr && value.map()->is_namespace)
      return Error("a namespace cannot be kept in another value");
    return value.list() == nullptr || lists ? absl::OkStatus() : Error("lists in lists are not served");
  }

  absl::Status SetIn(Map& space, const std::string& name, Value value) const {
    RETURN_IF_ERROR(CheckHeld(value, true));
    if (space.entries.size() >= kMaxAttributes && space.Find(name) == nullptr)
      return Error(absl::StrCat("a namespace has more than ", kMaxAttributes, " attributes"));
    space.Set(name, std::move(value));
    return absl::OkStatus();
  }

  absl::Status Set(const Statement& statement) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*statement.value));
    if (!statement.attribute) {
      scopes_.back()[statement.names[0]] = std::move(value);
      return absl::OkStatus();
    }
    const Value space = Find(statement.names[0]);
    if (space.map() == nullptr || !space.map()->is_namespace)
      return Error(absl::StrCat(statement.names[0], " is no namespace, so its ", statement.names[1], " cannot be set"));
    return SetIn(*space.map(), statement.names[1], std::move(value));
  }

  absl::Status Bind(const Statement& statement, const Value& entry, std::map<std::string, Value>& scope) const {
    if (statement.names.size() == 1) {
      scope[statement.names[0]] = entry;
      return absl::OkStatus();
    }
    if (entry.list() == nullptr || entry.list()->size() != statement.names.size())
      return Error(absl::StrCat("an entry is not a list of ", statement.names.size()));
    for (size_t i = 0; i < statement.names.size(); ++i) scope[statement.names[i]] = (*entry.list())[i];
    return absl::OkStatus();
  }

  absl::Status Loop(const Statement& statement) {
    ASSIGN_OR_RETURN(const Value over, Evaluate(*statement.value));
    List entries;
    if (over.list() != nullptr) {
      entries = *over.list();
    } else if (over.map() != nullptr && !over.map()->is_namespace) {
      for (const auto& [key, value] : over.map()->entries) entries.push_back(Value::Of(key));
    } else if (!over.undefined()) {
      return Error(absl::StrCat("for is not served over ", over.KindName()));
    }
    RETURN_IF_ERROR(Charge(entries.size()));
    if (statement.condition != nullptr) {
      List kept;
      for (Value& entry : entries) {
        scopes_.emplace_back();
        RETURN_IF_ERROR(Bind(statement, entry, scopes_.back()));
        ASSIGN_OR_RETURN(const Value holds, Evaluate(*statement.condition));
        scopes_.pop_back();
        if (holds.IsTrue()) kept.push_back(std::move(entry));
      }
      entries = std::move(kept);
    }
    const auto count = static_cast<int64_t>(entries.size());
    for (int64_t i = 0; i < count; ++i) {
      RETURN_IF_ERROR(Charge(64));
      auto loop = std::make_shared<Map>();
      loop->entries = {
          {"index", {i + 1}},        {"index0", {i}},     {"first", {i == 0}},           {"last", {i + 1 == count}},
          {"revindex", {count - i}}, {"length", {count}}, {"revindex0", {count - i - 1}}};
      if (i > 0) loop->Set("previtem", entries[static_cast<size_t>(i - 1)]);
      if (i + 1 < count) loop->Set("nextitem", entries[static_cast<size_t>(i + 1)]);
      scopes_.emplace_back();
      scopes_.back()["loop"] = {std::move(loop)};
      RETURN_IF_ERROR(Bind(statement, entries[static_cast<size_t>(i)], scopes_.back()));
      RETURN_IF_ERROR(Run(statement.body));
      scopes_.pop_back();
    }
    return absl::OkStatus();
  }

  Value Find(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->find(name);
      if (found != scope->end()) return found->second;
    }
    return Value();
  }

  absl::StatusOr<Value> Evaluate(const Node& node) {
    RETURN_IF_ERROR(Charge(1));
    return Compute(node);
  }

  // First the operand that decides which parts are evaluated at all; then the others.
  absl::StatusOr<Value> Compute(const Node& node) {
    switch (node.kind) {
      case Node::kConstant:
        return node.value;
      case Node::kName: {
        Value found = Find(node.name);
        if (found.undefined() && IsFunction(node.name))
          return Error(absl::StrCat("the function ", node.name, " is served in calls and tests of defined"));
        return found;
      }
      case Node::kTest: {
        const bool defined = node.name == "defined", function = defined || node.name == "undefined";
        if (function && node.parts[0]->kind == Node::kName && IsFunction(node.parts[0]->name)) return Value{defined};
        break;
      }
      case Node::kAnd:
      case Node::kOr: {
        ASSIGN_OR_RETURN(Value left, Evaluate(*node.parts[0]));
        if (left.IsTrue() == (node.kind == Node::kOr)) return left;
        return Evaluate(*node.parts[1]);
      }
      case Node::kChoice: {
        ASSIGN_OR_RETURN(const Value condition, Evaluate(*node.parts[1]));
        if (condition.IsTrue()) return Evaluate(*node.parts[0]);
        return node.parts[2] == nullptr ? Value() : Evaluate(*node.parts[2]);
      }
      default:
        break;
    }
    List parts;
    for (const auto& part : node.parts) {
      parts.emplace_back();
      if (part == nullptr) continue;
      ASSIGN_OR_RETURN(parts.back(), Evaluate(*part));
    }
    if (node.kind == Node::kList) {
      for (const Value& part : parts) RETURN_IF_ERROR(CheckHeld(part, false));
      return Value::Of(std::move(parts));
    }
    if (node.kind == Node::kFunction) return Call(node, parts);
    // Time that does not depend on the values.
    const bool end = node.kind == Node::kFilter &&
                     (node.name == "length" || node.name == "count" || node.name == "first" || node.name == "last");
    const bool constant = node.kind == Node::kAttribute || node.kind == Node::kTest || node.kind == Node::kNot ||
                          ((node.kind == Node::kItem || end) && parts[0].text() == nullptr);
    if (constant) {
      if (parts[0].map() != nullptr) RETURN_IF_ERROR(ChargeFor(parts[0], false));
      return Placed(Apply(node, std::move(parts)));
    }
    const bool deep = (node.kind == Node::kBinary && node.name != "+") || node.kind == Node::kFilter;
    for (const Value& part : parts) RETURN_IF_ERROR(ChargeFor(part, deep));
    ASSIGN_OR_RETURN(Value made, Placed(Apply(node, std::move(parts))));
    RETURN_IF_ERROR(ChargeFor(made, false));
    RETURN_IF_ERROR(HoldNew(made));
    return made;
  }

  static absl::StatusOr<Value> Apply(const Node& node, List parts) {
    const Value of = parts[0];
    switch (node.kind) {
      case Node::kAttribute:
        return Attribute(of, node.name);
      case Node::kItem:
        return Item(of, parts[1]);
      case Node::kSlice:
        return Slice(of, parts[1], parts[2], parts[3]);
      case Node::kNot:
        return Value{!of.IsTrue()};
      case Node::kNegative:
        return Binary("-", {int64_t{0}}, of);
      case Node::kTest:
        return Value{Test(node.name, of)};
      case Node::kBinary:
        return Binary(node.name, of, parts[1]);
      default:
        parts.erase(parts.begin());
        return node.kind == Node::kMethod ? Method(node.name, of, parts) : Filter(node.name, of, parts);
    }
  }

  absl::StatusOr<Value> Call(const Node& node, const List& arguments) {
    if (node.name == "namespace") {
      auto space = std::make_shared<Map>();
      space->is_namespace = true;
      if (!arguments.empty()) return Error("namespace takes named arguments");
      for (const auto& [name, part] : node.named) {
        ASSIGN_OR_RETURN(Value value, Evaluate(*part));
        RETURN_IF_ERROR(SetIn(*space, name, std::move(value)));
      }
      return Value{std::move(space)};
    }
    if (node.name == "raise_exception") {
      if (arguments.size() != 1 || arguments[0].text() == nullptr) return Error("raise_exception takes a text");
      return absl::InvalidArgumentError(*arguments[0].text());
    }
    if (node.name == "range") {
      if (arguments.size() != 1 || arguments[0].As<int64_t>() == nullptr)
        return Error("range is served with one number");
      const int64_t count = *arguments[0].As<int64_t>();
      RETURN_IF_ERROR(Charge(static_cast<size_t>(std::min(std::max<int64_t>(count, 0), ChatTemplate::kMaxWork + 1))));
      List numbers;
      for (int64_t i = 0; i < count; ++i) numbers.push_back({i});
      return Value::Of(std::move(numbers));
    }
    if (arguments.size() != 1 || arguments[0].text() == nullptr) return Error("strftime_now takes a text");
    ASSIGN_OR_RETURN(std::string date, Placed(DateText(*arguments[0].text(), now_)));
    RETURN_IF_ERROR(Charge(date.size()));
    return Value::Of(std::move(date));
  }

  const absl::CivilSecond now_;
  WorkMeter meter_;
  ReservedBytes held_;
  std::vector<std::map<std::string, Value>> scopes_;
  std::string out_;
  size_t line_ = 1;
  int64_t work_ = 0;
};

absl::StatusOr<std::vector<Statement>> ParseTemplate(const std::string& source, const Tokens& tokens) {
  if (source.size() > ChatTemplate::kMaxSource) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", source.size(), " bytes; served are at most ", ChatTemplate::kMaxSource));
  }
  const size_t invalid = FirstInvalidByte(source);
  if (invalid < source.size()) return absl::InvalidArgumentError(absl::StrCat("byte ", invalid, " is not UTF-8"));
  absl::StatusOr<std::vector<Statement>> statements = Parse(source);
  absl::Status status = statements.status();
  if (status.ok()) status = CheckTokens(*statements, tokens);
  if (!status.ok()) return Shortened(status);
  return statements;
}

}  // namespace

absl::Status NoTemplate() { return absl::NotFoundError("the model's folder has no chat template"); }

absl::StatusOr<ChatTemplate> ChatTemplate::Read(const std::string& source, Tokens tokens,
                                                const std::optional<std::string>& tool_use) {
  ChatTemplate read;
  ASSIGN_OR_RETURN(read.statements_, ParseTemplate(source, tokens));
  if (tool_use.has_value()) read.tool_use_ = ParseTemplate(*tool_use, tokens);
  read.tokens_ = std::move(tokens);
  return read;
}

absl::StatusOr<std::string> ChatTemplate::Render(const std::vector<Message>& messages, absl::CivilSecond now,
                                                 WorkBounds& bounds, const Arguments& arguments) const {
  RETURN_IF_ERROR(CheckArguments(arguments, tokens_));
  std::map<std::string, Value> variables;
  for (const auto& [name, text] : tokens_) {
    if (text.has_value()) variables[name] = Value::Of(*text);
  }
  List said;
  ReservedBytes copies(bounds);
  for (const Message& message : messages) {
    RETURN_IF_ERROR(copies.Resize(copies.bytes() + message.role.size() + message.content.size() + kBytesOfMessage));
    auto entry = std::make_shared<Map>();
    entry->Set("role", Value::Of(message.role));
    entry->Set("content", Value::Of(message.content));
    said.push_back({std::move(entry)});
  }
  variables["messages"] = Value::Of(std::move(said));
  variables["add_generation_prompt"] = {true};
  variables["tools"] = variables["documents"] = {None()};
  for (const auto& [name, value] : arguments.values()) variables[name] = value;
  const bool tools = variables["tools"].As<None>() == nullptr && tool_use_.has_value();
  REFUSE_IF(tools && !tool_use_->ok(), "template_arguments.tools",
            "is set; of the model's chat templates the one for tools (tool_use) is not served: ",
            std::string(tool_use_->status().message()));
  Renderer renderer(std::move(variables), now, bounds);
  const absl::Status status = renderer.Run(tools ? **tool_use_ : statements_);
  if (!status.ok()) return Shortened(status);
  return renderer.TakeText();
}

}  // namespace edgewise::chat
