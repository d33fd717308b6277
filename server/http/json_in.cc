#include "server/http/json_in.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/json_text.h"
#include "base/utf8.h"
#include "http/bodies.pb.h"
#include "server/http/json_out.h"
#include "server/http/json_scalar.h"
#include "server/wire/wire_check.h"

namespace edgewise::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using nlohmann::json;

constexpr uint64_t kBytesOfLexer = 4;    // a string stands in the lexer twice, in texts that have grown by doubling
constexpr uint64_t kBytesOfPart = 256;   // of a string, a message or a name, beside its own bytes
constexpr uint64_t kBytesOfNumber = 32;  // with the arrays that a list outgrew
constexpr uint64_t kReservedAtOnce = 64 << 10;
constexpr size_t kMostShown = 64;  // bytes of a name, in an error

class Reader final : public nlohmann::json_sax<json> {
 public:
  Reader(JsonDialect dialect, Message& root, MemoryHold& memory, const RequestLimits& limits)
      : dialect_(dialect), root_(root), memory_(memory), limits_(limits) {}

  const absl::Status& status() const { return status_; }
  bool Reserve(uint64_t bytes) {
    needed_ += bytes;
    if (needed_ <= reserved_) return true;
    const uint64_t more = std::max(needed_ - reserved_, kReservedAtOnce);
    status_ = memory_.Resize(memory_.bytes() + more);
    if (status_.ok()) reserved_ += more;
    return status_.ok();
  }

  bool null() override {
    if (capturing_ > 0) return Captured(out_.Null());
    if (frames_.empty()) return Fail("is null; an object is expected");
    unknown_ = absl::OkStatus();
    if (frames_.back().kind == Kind::kObject) return true;
    ++frames_.back().index;
    return Fail("is null; it must be left out");
  }
  bool boolean(bool value) override { return captures() ? Captured(out_.Bool(value)) : Scalar(value); }
  bool number_integer(json::number_integer_t value) override {
    return captures() ? Captured(out_.Integer(value)) : Scalar(int64_t{value});
  }
  bool number_unsigned(json::number_unsigned_t value) override {
    return captures() ? Captured(out_.Unsigned(value)) : Scalar(uint64_t{value});
  }
  bool number_float(json::number_float_t value, const std::string& text) override {
    return captures() ? Captured(out_.Raw(text)) : Scalar(value);
  }
  bool string(std::string& value) override {
    if (!Part(2 * value.size())) return false;
    return captures() ? Captured(out_.String(value)) : Scalar(std::move(value));
  }
  bool binary(json::binary_t&) override { return false; }

  bool start_object(size_t) override {
    if (!Open() || !Part(0) || !Known()) return false;
    if (captures()) return StartCapture('{');
    if (frames_.empty()) return Push({Kind::kObject, &root_});
    Frame& top = frames_.back();
    if (top.kind == Kind::kContent) {
      return Alike('{') && Push({Kind::kObject, Content(top)->add_parts()});
    }
    const FieldDescriptor* field = top.field;
    if (field == nullptr || field->message_type() == nullptr || (top.kind == Kind::kObject && field->is_repeated()) ||
        field->message_type() == http::Content::descriptor()) {
      return FailKind("an object");
    }
    return Push({Kind::kObject, Child(top, *field)});
  }
  bool key(std::string& key) override {
    if (capturing_ > 0) {
      if (!keys_.back().insert(key).second) return Fail(absl::StrCat("has the field ", Quoted(key), " twice"));
      out_.Key(key);
      return Part(2 * key.size());
    }
    Frame& top = frames_.back();
    const Descriptor& type = *top.message->GetDescriptor();
    top.field = type.FindFieldByName(key);
    if (top.field == nullptr && dialect_ == JsonDialect::kProtobuf) top.field = type.FindFieldByCamelcaseName(key);
    if (top.field == nullptr) {
      FailAt(Path(key),
             absl::StrCat("is no field that is taken here", IsOption(type, key) ? "; it is in edgewise" : ""));
      if (dialect_ != JsonDialect::kPlain) return false;
      unknown_ = std::exchange(status_, absl::OkStatus());  // where a value comes; null asks for nothing
      return true;
    }
    if (std::find(top.seen.begin(), top.seen.end(), top.field) != top.seen.end()) return Fail("is given twice");
    top.seen.push_back(top.field);
    const auto* oneof = top.field->real_containing_oneof();
    if (oneof != nullptr && top.message->GetReflection()->HasOneof(*top.message, oneof)) {
      return Fail(absl::StrCat("is given beside another of ", oneof->name(), "; choose one of them"));
    }
    return true;
  }
  bool end_object() override {
    --depth_;
    if (capturing_ > 0) return EndCapture('}');
    frames_.pop_back();
    return true;
  }

  bool start_array(size_t) override {
    if (!Open() || !Known()) return false;
    if (captures()) return StartCapture('[');
    if (frames_.empty()) return Fail("is a list; an object is expected");
    Frame& top = frames_.back();
    if (top.kind == Kind::kContent) {
      return Part(0) && Alike('[') && Push({Kind::kIds, Content(top)->add_ids()});
    }
    const FieldDescriptor* field = top.field;
    if (top.kind == Kind::kObject && field->is_repeated()) return Push({Kind::kList, top.message, field});
    if (top.kind == Kind::kObject && field->message_type() == http::Content::descriptor()) {
      auto* content = static_cast<http::Content*>(Child(top, *field));
      content->set_list(true);
      return Push({Kind::kContent, content});
    }
    return FailKind("a list");
  }
  bool end_array() override {
    --depth_;
    if (capturing_ > 0) return EndCapture(']');
    frames_.pop_back();
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat("the body is no JSON, at byte ", position));
    return false;
  }

 private:
  enum class Kind {
    kObject,   // the fields of `message`
    kList,     // the elements of its field `field`
    kContent,  // the elements of a list that is a Content
    kIds,      // token ids in there
  };
  struct Frame {
    Kind kind;
    Message* message;
    const FieldDescriptor* field = nullptr;  // kObject: of the key that was read last
    int index = -1;                          // of the element
    char elements = 0;                       // kContent: how they begin; 0: there is none
    std::vector<const FieldDescriptor*> seen = {};
  };

  static http::Content* Content(const Frame& frame) { return static_cast<http::Content*>(frame.message); }
  static Message* Child(const Frame& frame, const FieldDescriptor& field) {
    const auto* reflection = frame.message->GetReflection();
    return field.is_repeated() ? reflection->AddMessage(frame.message, &field)
                               : reflection->MutableMessage(frame.message, &field);
  }

  bool Push(Frame frame) {
    frames_.push_back(std::move(frame));
    return true;
  }

  // Whether the value that comes is a field of the message Json, or in one.
  bool captures() {
    if (capturing_ > 0) return true;
    if (frames_.empty()) return false;
    Frame& top = frames_.back();
    if (top.kind == Kind::kList || top.kind == Kind::kContent || top.kind == Kind::kIds) ++top.index;
    const FieldDescriptor* field = top.field;
    return top.kind == Kind::kObject && field != nullptr && !field->is_repeated() &&
           field->message_type() == http::Json::descriptor();
  }
  bool StartCapture(char bracket) {
    ++capturing_;
    keys_.emplace_back();
    bracket == '{' ? out_.BeginObject() : out_.BeginArray();
    return true;
  }
  bool EndCapture(char bracket) {
    --capturing_;
    keys_.pop_back();
    return Captured(bracket == '}' ? out_.EndObject() : out_.EndArray());
  }
  // A value was written; it may be the whole one.
  bool Captured(JsonOut&) {
    if (capturing_ > 0) return Reserve(kBytesOfNumber);
    Frame& top = frames_.back();
    const uint64_t bytes = out_.text().size();
    if (!Part(2 * bytes)) return false;
    static_cast<http::Json*>(Child(top, *top.field))->set_text(out_.Take());
    out_ = {};
    return true;
  }

  // Whether the value that comes is of a field that is taken.
  bool Known() {
    if (!unknown_.ok()) status_ = unknown_;
    return unknown_.ok();
  }
  // Whether the object edgewise has such a field, which is served where `body` is read.
  static bool IsOption(const Descriptor& body, const std::string& key) {
    const bool writes = &body == http::OpenAiGeneration::descriptor();
    if (key == "top_k" || key == "min_p" || key == "repetition_penalty") return writes;
    if (key == "truncate") return writes || &body == http::OpenAiEmbeddings::descriptor();
    const FieldDescriptor* options = body.FindFieldByName("edgewise");
    return options != nullptr && options->message_type() == http::Options::descriptor() &&
           http::Options::descriptor()->FindFieldByName(key) != nullptr;
  }

  bool Scalar(JsonScalar value) {
    if (frames_.empty()) return Fail("is no object");
    if (!Known() || !Reserve(kBytesOfNumber)) return false;
    Frame& top = frames_.back();
    if (top.kind == Kind::kContent) return AddTo(*Content(top), std::move(value));
    if (top.kind == Kind::kIds) {
      return Set(*top.message->GetDescriptor()->FindFieldByNumber(1), std::move(value), *top.message);
    }
    const FieldDescriptor& field = *top.field;
    const bool list = top.kind == Kind::kObject && field.is_repeated();
    const bool content = field.message_type() == http::Content::descriptor();
    if (list || (content && !std::holds_alternative<std::string>(value))) {
      return Fail(Instead(value, /*shows_text=*/false, Expected()));
    }
    if (content) {
      static_cast<http::Content*>(Child(top, field))->add_texts(std::get<std::string>(std::move(value)));
      return true;
    }
    return Set(field, std::move(value), *top.message);
  }
  bool Set(const FieldDescriptor& field, JsonScalar value, Message& message) {
    const std::string wrong = SetScalar(field, dialect_, std::move(value), limits_, message);
    return wrong.empty() || Fail(wrong);
  }
  // What may stand where a value does that is read.
  std::string Expected() const {
    const Frame& top = frames_.back();
    if (top.kind == Kind::kIds) return "a token id, an integer of 32 bits";
    return ExpectedOf(*top.field, /*element=*/top.kind == Kind::kList, limits_);
  }
  bool FailKind(const char* kind) { return Fail(absl::StrCat("is ", kind, "; expected ", Expected())); }
  // An element of a list that is no list.
  bool AddTo(http::Content& content, JsonScalar value) {
    if (auto* text = std::get_if<std::string>(&value)) {
      if (!Alike('"')) return false;
      content.add_texts(std::move(*text));
      return true;
    }
    auto* ids = content.ids_size() > 0 ? content.mutable_ids(0) : content.add_ids();
    return Alike('0') && Set(*ids->GetDescriptor()->FindFieldByNumber(1), std::move(value), *ids);
  }
  // Whether all elements of a Content so far are of the same kind, which begins so.
  bool Alike(char kind) {
    char& first = frames_.back().elements;
    if (first == 0) first = kind;
    return first == kind || Fail("is of another kind than those before it");
  }

  bool Open() {
    return ++depth_ <= kMaxJsonDepth || Fail(absl::StrCat("nests deeper than ", kMaxJsonDepth, " levels"));
  }
  bool Part(uint64_t bytes) {
    if (++parts_ <= kMaxParts) return Reserve(kBytesOfPart + bytes);
    status_ = absl::ResourceExhaustedError(
        absl::StrCat("the body has more than ", kMaxParts, " objects and strings, the most that the server takes"));
    return false;
  }

  // The beginning of a name, in whole characters.
  static std::string Shown(const std::string& key) {
    size_t bytes = std::min(key.size(), kMostShown);
    while (bytes < key.size() && ContinuesCharacter(key[bytes])) --bytes;
    return key.substr(0, bytes);
  }
  // The path of the value that is read; `key` stands for the last name.
  std::string Path(const std::string& key = "") const {
    std::string path;
    for (size_t i = 0; i < frames_.size(); ++i) {
      const Frame& frame = frames_[i];
      if (frame.kind != Kind::kObject) {
        absl::StrAppend(&path, "[", std::max(0, frame.index), "]");
      } else if (const bool last = i + 1 == frames_.size(); frame.field != nullptr || (last && !key.empty())) {
        absl::StrAppend(&path, path.empty() ? "" : ".", last && !key.empty() ? Shown(key) : frame.field->name());
      }
    }
    return path;
  }
  bool Fail(const std::string& what) { return FailAt(Path(), what); }
  bool FailAt(const std::string& path, const std::string& what) {
    status_ = path.empty() ? absl::InvalidArgumentError(absl::StrCat("the body ", what)) : FieldError(path, what);
    return false;
  }

  const JsonDialect dialect_;
  Message& root_;
  MemoryHold& memory_;
  const RequestLimits& limits_;
  absl::Status status_;
  absl::Status unknown_;  // of a field that is not taken, until its value comes
  uint64_t needed_ = 0, reserved_ = 0, parts_ = 0;
  int depth_ = 0;
  std::vector<Frame> frames_;
  JsonOut out_;                              // of a captured value
  int capturing_ = 0;                        // its open brackets
  std::vector<std::set<std::string>> keys_;  // of its open objects
};

}  // namespace

absl::Status ReadJson(std::string_view text, JsonDialect dialect, Message& message, MemoryHold& memory,
                      const RequestLimits& limits) {
  Reader reader(dialect, message, memory, limits);
  if (!reader.Reserve(kBytesOfLexer * text.size())) return reader.status();
  const bool read = SaxParse(text, reader);
  if (read || !reader.status().ok()) return reader.status();
  return absl::InvalidArgumentError("the body is no JSON");
}

}  // namespace edgewise::server
