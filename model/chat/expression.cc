#include "model/chat/expression.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/chat/date.h"

namespace edgewise::chat {
namespace {

using NodePtr = std::unique_ptr<Node>;
using Names = std::initializer_list<std::string_view>;

constexpr std::string_view kFunctions[] = {"namespace", "raise_exception", "range", "strftime_now"};
constexpr std::string_view kMethods[] = {"capitalize", "endswith", "get",   "items",      "lower", "lstrip",
                                         "replace",    "rstrip",   "split", "startswith", "strip", "upper"};
constexpr std::string_view kFilters[] = {"capitalize", "count",  "default", "first",  "items",      "join",    "last",
                                         "length",     "list",   "lower",   "reject", "rejectattr", "replace", "select",
                                         "selectattr", "string", "tojson",  "trim",   "upper"};
constexpr std::string_view kTests[] = {"boolean", "defined",  "false",  "iterable", "mapping",  "none",
                                       "number",  "sequence", "string", "true",     "undefined"};
constexpr std::string_view kComparingTests[] = {"==", "eq", "equalto", "!=", "ne"};  // of select and its kin

constexpr int64_t kMaxIndent = 16;  // of tojson

class ExpressionReader {
 public:
  // `loops`: it is what a loop goes over.
  ExpressionReader(TokenCursor& cursor, bool loops) : cursor_(cursor), loops_(loops) {}

  absl::StatusOr<NodePtr> ParseExpression() {
    if (++depth_ > kMaxDepth) return cursor_.Error("the expression is nested too deeply");
    ASSIGN_OR_RETURN(NodePtr node, ParseOr());
    while (cursor_.TakeName("if")) {
      ASSIGN_OR_RETURN(NodePtr condition, ParseOr());
      NodePtr otherwise;
      if (cursor_.TakeName("else")) {
        ASSIGN_OR_RETURN(otherwise, ParseExpression());
      }
      node = Make(Node::kChoice, "", std::move(node), std::move(condition), std::move(otherwise));
    }
    --depth_;
    return node;
  }

  absl::StatusOr<NodePtr> ParseOr() {
    ASSIGN_OR_RETURN(NodePtr left, ParseAnd());
    while (cursor_.TakeName("or")) {
      ASSIGN_OR_RETURN(NodePtr right, ParseAnd());
      left = Make(Node::kOr, "", std::move(left), std::move(right));
    }
    return left;
  }

 private:
  NodePtr Make(Node::Kind kind, std::string name = "") {
    ++nodes_;
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->name = std::move(name);
    return node;
  }
  template <typename... Parts>
  NodePtr Make(Node::Kind kind, std::string name, Parts... parts) {
    NodePtr node = Make(kind, std::move(name));
    (node->parts.push_back(std::move(parts)), ...);
    return node;
  }

  absl::StatusOr<NodePtr> ParseAnd() {
    ASSIGN_OR_RETURN(NodePtr left, ParseNot());
    while (cursor_.TakeName("and")) {
      ASSIGN_OR_RETURN(NodePtr right, ParseNot());
      left = Make(Node::kAnd, "", std::move(left), std::move(right));
    }
    return left;
  }

  absl::StatusOr<NodePtr> ParseNot() {
    if (!cursor_.TakeName("not")) return ParseComparison();
    if (++depth_ > kMaxDepth) return cursor_.Error("the expression is nested too deeply");
    ASSIGN_OR_RETURN(NodePtr of, ParseNot());
    --depth_;
    return Make(Node::kNot, "", std::move(of));
  }

  absl::StatusOr<NodePtr> ParseComparison() {
    ASSIGN_OR_RETURN(NodePtr left, ParseSum());
    std::string name;
    for (const char* compare : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (name.empty() && cursor_.TakeOperator(compare)) name = compare;
    }
    if (name.empty() && cursor_.TakeName("in")) name = "in";
    if (name.empty() && cursor_.IsName("not") && cursor_.next().kind == Token::kName && cursor_.next().text == "in") {
      cursor_.Skip(2);
      name = "not in";
    }
    if (name.empty()) return left;
    ASSIGN_OR_RETURN(NodePtr right, ParseSum());
    for (const char* compare : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (cursor_.Is(Token::kOperator, compare)) return cursor_.Error("chains of comparisons are not served");
    }
    return Make(Node::kBinary, name, std::move(left), std::move(right));
  }

  absl::StatusOr<NodePtr> ParseSum() {
    return ParseBinary({"+", "-"}, [this] {
      return ParseBinary({"~"}, [this] { return ParseBinary({"*", "//", "%"}, [this] { return ParseUnary(); }); });
    });
  }

  template <typename Operand>
  absl::StatusOr<NodePtr> ParseBinary(Names operators, const Operand& operand) {
    ASSIGN_OR_RETURN(NodePtr left, operand());
    while (cursor_.token().kind == Token::kOperator &&
           std::find(operators.begin(), operators.end(), cursor_.token().text) != operators.end()) {
      const std::string name = cursor_.TakeText();
      ASSIGN_OR_RETURN(NodePtr right, operand());
      left = Make(Node::kBinary, name, std::move(left), std::move(right));
    }
    return left;
  }

  // `filters`: filters and tests that follow belong to it; those behind a negative number are the number's.
  absl::StatusOr<NodePtr> ParseUnary(bool filters = true) {
    NodePtr node;
    if (nodes_ > kMaxNodes) return cursor_.Error("the expression is too long");
    if (cursor_.TakeOperator("-")) {
      if (++depth_ > kMaxDepth) return cursor_.Error("the expression is nested too deeply");
      ASSIGN_OR_RETURN(NodePtr of, ParseUnary(false));
      --depth_;
      node = Make(Node::kNegative, "", std::move(of));
    } else {
      ASSIGN_OR_RETURN(node, ParsePrimary());
    }
    return ParsePostfix(std::move(node), filters);
  }

  absl::StatusOr<NodePtr> ParsePrimary() {
    NodePtr node = Make(Node::kConstant);
    const Token first = cursor_.token();
    if (first.kind == Token::kString) {
      std::string text;  // texts side by side are one
      while (cursor_.token().kind == Token::kString) text += cursor_.TakeText();
      node->value = Value::Of(std::move(text));
      return node;
    }
    if (first.kind == Token::kNumber) {
      cursor_.Skip();
      node->value = {first.number};
      return node;
    }
    const bool searched = cursor_.After("in");
    if (cursor_.TakeOperator("(")) {
      if (!cursor_.Is(Token::kOperator, ")")) {
        ASSIGN_OR_RETURN(NodePtr first_part, ParseExpression());
        if (cursor_.TakeOperator(")")) return first_part;
        RETURN_IF_ERROR(cursor_.ExpectOperator(","));
        node->parts.push_back(std::move(first_part));
      }
      if (!searched) return cursor_.Error("a tuple, which equals no list, is served behind in alone");
      RETURN_IF_ERROR(ParseList(")", *node));
      return node;
    }
    if (cursor_.TakeOperator("[")) {
      RETURN_IF_ERROR(ParseList("]", *node));
      return node;
    }
    ASSIGN_OR_RETURN(const std::string name, cursor_.ReadName());
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      node->value = {name[0] == 't' || name[0] == 'T'};
    } else if (name == "none" || name == "None") {
      node->value = {None()};
    } else {
      node->kind = Node::kName;
      node->name = name;
    }
    return node;
  }

  // Up to the bracket that closes it.
  absl::Status ParseList(const std::string& end, Node& list) {
    list.kind = Node::kList;
    while (!cursor_.TakeOperator(end)) {
      ASSIGN_OR_RETURN(list.parts.emplace_back(), ParseExpression());
      if (cursor_.Is(Token::kOperator, end)) continue;
      RETURN_IF_ERROR(cursor_.ExpectOperator(","));
    }
    return absl::OkStatus();
  }

  // Whether a name is one of those that are served.
  template <size_t count>
  absl::Status Check(const char* what, const std::string& name, const std::string_view (&served)[count]) const {
    if (std::find(std::begin(served), std::end(served), name) != std::end(served)) return absl::OkStatus();
    std::string all;
    for (const std::string_view one : served) absl::StrAppend(&all, all.empty() ? "" : ", ", std::string(one));
    return cursor_.Error(absl::StrCat("the ", what, " ", name, " is not served; served: ", all));
  }

  absl::Status ParseArguments(Node& node) {
    while (!cursor_.TakeOperator(")")) {
      const bool named =
          cursor_.token().kind == Token::kName && cursor_.next().kind == Token::kOperator && cursor_.next().text == "=";
      if (named) {
        std::string name = cursor_.token().text;
        cursor_.Skip(2);
        NodePtr value;
        if (name == "separators" && node.name == "tojson") {
          ASSIGN_OR_RETURN(value, ParseSeparators());
        } else {
          ASSIGN_OR_RETURN(value, ParseExpression());
        }
        node.named.emplace_back(std::move(name), std::move(value));
      } else {
        ASSIGN_OR_RETURN(node.parts.emplace_back(), ParseExpression());
      }
      if (!cursor_.Is(Token::kOperator, ")")) RETURN_IF_ERROR(cursor_.ExpectOperator(","));
    }
    if (node.kind == Node::kFilter && node.name == "tojson") return TakeJsonStyle(node);
    if (node.kind == Node::kFunction && node.name == "strftime_now") RETURN_IF_ERROR(CheckDate(node));
    const bool may = node.named.empty() || (node.kind == Node::kFunction && node.name == "namespace");
    return may ? absl::OkStatus() : cursor_.Error(absl::StrCat("named arguments of ", node.name, " are not served"));
  }

  // A format that the template writes is checked here; one that it makes, when it is used.
  absl::Status CheckDate(const Node& node) const {
    const std::string* format = node.parts.size() == 1 ? node.parts[0]->value.text() : nullptr;
    if (format == nullptr) return absl::OkStatus();
    const absl::Status status = DateText(*format, absl::CivilSecond()).status();
    return status.ok() ? status : cursor_.Error(std::string(status.message()));
  }

  // Two texts in brackets; else what does for no separators.
  absl::StatusOr<NodePtr> ParseSeparators() {
    NodePtr node = Make(Node::kList);
    if (cursor_.TakeOperator("(")) {
      RETURN_IF_ERROR(ParseList(")", *node));
      return node;
    }
    return ParseExpression();
  }

  // The arguments of tojson have names; their values remain.
  absl::Status TakeJsonStyle(Node& node) {
    const auto is_text = [](const NodePtr& part) { return part->kind == Node::kConstant && part->value.text(); };
    bool served = node.parts.size() == 1;
    NodePtr indent = Make(Node::kConstant);
    std::vector<NodePtr> separators;
    for (auto& [name, part] : node.named) {
      const bool* escapes = part->value.As<bool>();
      const int64_t* spaces = part->value.As<int64_t>();
      if (name == "indent" && spaces != nullptr && *spaces <= kMaxIndent) {
        indent = std::move(part);
      } else if (name == "separators" && part->kind == Node::kList && part->parts.size() == 2 &&
                 is_text(part->parts[0]) && is_text(part->parts[1])) {
        separators = std::move(part->parts);
      } else {
        served = served && name == "ensure_ascii" && escapes != nullptr && !*escapes;
      }
    }
    node.named.clear();
    if (!served) {
      return cursor_.Error(
          "of tojson's arguments are served: indent=0 to 16, ensure_ascii=false, separators=(text, text)");
    }
    node.parts.push_back(std::move(indent));
    for (NodePtr& separator : separators) node.parts.push_back(std::move(separator));
    return absl::OkStatus();
  }

  // The test of select and its kin is one that is served.
  absl::Status CheckSelection(const Node& node) const {
    const size_t test = node.name.ends_with("attr") ? 2 : 1, count = node.parts.size();
    if (count < test) return cursor_.Error(absl::StrCat(node.name, " needs the name of an attribute"));
    if (count == test) return absl::OkStatus();
    const std::string* name = node.parts[test]->value.text();
    if (node.parts[test]->kind != Node::kConstant || name == nullptr)
      return cursor_.Error(absl::StrCat("the test of ", node.name, " is served as a text"));
    const auto* end = std::end(kComparingTests);
    const bool compares = std::find(std::begin(kComparingTests), end, *name) != end;
    if (!compares) RETURN_IF_ERROR(Check("test", *name, kTests));
    if (count == test + (compares ? 2 : 1)) return absl::OkStatus();
    return cursor_.Error(absl::StrCat("the test ", *name, " has another number of arguments"));
  }

  absl::StatusOr<NodePtr> ParsePostfix(NodePtr node, bool filters) {
    for (int length = 0;; ++length) {
      if (length > kMaxNodes) return cursor_.Error("the expression is too long");
      if (cursor_.TakeOperator(".")) {
        ASSIGN_OR_RETURN(const std::string name, cursor_.ReadName());
        node = Make(Node::kAttribute, name, std::move(node));
        if (cursor_.TakeOperator("(")) {
          node->kind = Node::kMethod;
          RETURN_IF_ERROR(Check("method", name, kMethods));
          RETURN_IF_ERROR(ParseArguments(*node));
        }
      } else if (cursor_.TakeOperator("[")) {
        ASSIGN_OR_RETURN(node, ParseItem(std::move(node)));
      } else if (cursor_.Is(Token::kOperator, "(")) {
        if (node->kind != Node::kName) return cursor_.Error("only functions and methods can be called");
        RETURN_IF_ERROR(Check("function", node->name, kFunctions));
        cursor_.Skip();
        node->kind = Node::kFunction;
        RETURN_IF_ERROR(ParseArguments(*node));
      } else if (filters && cursor_.TakeOperator("|")) {
        ASSIGN_OR_RETURN(const std::string name, cursor_.ReadName());
        RETURN_IF_ERROR(Check("filter", name, kFilters));
        RETURN_IF_ERROR(CheckSelected(*node, Selects(name) || name == "list" || name == "first" || name == "join"));
        node = Make(Node::kFilter, name, std::move(node));
        if (cursor_.TakeOperator("(")) {
          RETURN_IF_ERROR(ParseArguments(*node));
        } else if (name == "tojson") {
          RETURN_IF_ERROR(TakeJsonStyle(*node));
        }
        if (Selects(name)) RETURN_IF_ERROR(CheckSelection(*node));
      } else if (filters && cursor_.TakeName("is")) {
        RETURN_IF_ERROR(CheckSelected(*node, false));
        const bool negated = cursor_.TakeName("not");
        ASSIGN_OR_RETURN(const std::string name, cursor_.ReadName());
        RETURN_IF_ERROR(Check("test", name, kTests));
        node = Make(Node::kTest, name, std::move(node));
        if (negated) node = Make(Node::kNot, "", std::move(node));
      } else {
        const bool ends = loops_ && (cursor_.token().kind == Token::kBlockEnd || cursor_.IsName("if"));
        if (filters) RETURN_IF_ERROR(CheckSelected(*node, ends));
        return node;
      }
    }
  }

  static bool Selects(const std::string& filter) {
    return filter == "select" || filter == "selectattr" || filter == "reject" || filter == "rejectattr";
  }
  // The result of select, its kin and items is no list in Jinja: it has no length and is always true.
  absl::Status CheckSelected(const Node& node, bool may) const {
    if (may || node.kind != Node::kFilter || !(Selects(node.name) || node.name == "items")) return absl::OkStatus();
    return cursor_.Error(absl::StrCat(node.name, " is served before list, first and join, and in for"));
  }

  // After "[".
  absl::StatusOr<NodePtr> ParseItem(NodePtr of) {
    NodePtr bounds[3];
    size_t colons = 0;
    while (!cursor_.TakeOperator("]")) {
      if (cursor_.TakeOperator(":")) {
        if (++colons > 2) return cursor_.Error("a slice has at most two colons");
      } else if (bounds[colons] == nullptr) {
        ASSIGN_OR_RETURN(bounds[colons], ParseExpression());
      } else {
        return cursor_.Error(absl::StrCat("\"]\" is expected before ", cursor_.Shown()));
      }
    }
    if (colons > 0)
      return Make(Node::kSlice, "", std::move(of), std::move(bounds[0]), std::move(bounds[1]), std::move(bounds[2]));
    if (bounds[0] == nullptr) return cursor_.Error("an index is expected before \"]\"");
    return Make(Node::kItem, "", std::move(of), std::move(bounds[0]));
  }

  TokenCursor& cursor_;
  const bool loops_;
  int depth_ = 0, nodes_ = 0;
};

}  // namespace

absl::StatusOr<NodePtr> ReadExpression(TokenCursor& cursor) {
  return ExpressionReader(cursor, false).ParseExpression();
}

bool IsFunction(const std::string& name) {
  return std::find(std::begin(kFunctions), std::end(kFunctions), name) != std::end(kFunctions);
}

absl::StatusOr<NodePtr> ReadLoopSource(TokenCursor& cursor) { return ExpressionReader(cursor, true).ParseOr(); }

}  // namespace edgewise::chat
