#include "model/chat/parser.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/chat/lexer.h"
#include "model/chat/token_cursor.h"

namespace edgewise::chat {
namespace {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : cursor_(std::move(tokens)) {}

  absl::StatusOr<std::vector<Statement>> ParseAll() {
    std::vector<Statement> all;
    RETURN_IF_ERROR(ParseBlock({}, all));
    return all;
  }

 private:
  // Statements up to a block whose first word is one of `ends`, which is not taken; none: to the end of the template.
  absl::Status ParseBlock(std::initializer_list<std::string_view> ends, std::vector<Statement>& body) {
    if (++depth_ > kMaxDepth) return cursor_.Error("blocks are nested too deeply");
    while (cursor_.token().kind != Token::kEnd) {
      Statement statement;
      statement.line = cursor_.token().line;
      if (cursor_.token().kind == Token::kText) {
        statement.text = cursor_.TakeText();
      } else if (cursor_.token().kind == Token::kOutputBegin) {
        cursor_.Skip();
        statement.kind = Statement::kOutput;
        ASSIGN_OR_RETURN(statement.value, ReadExpression(cursor_));
        RETURN_IF_ERROR(cursor_.Expect(Token::kOutputEnd, "}}"));
      } else {
        const Token& word = cursor_.next();
        if (word.kind == Token::kName && std::find(ends.begin(), ends.end(), word.text) != ends.end()) {
          --depth_;
          return absl::OkStatus();
        }
        cursor_.Skip();
        RETURN_IF_ERROR(ParseStatement(statement));
      }
      body.push_back(std::move(statement));
    }
    --depth_;
    if (ends.size() == 0) return absl::OkStatus();
    return cursor_.Error(absl::StrCat("a block has no ", std::string(*(ends.end() - 1))));
  }

  absl::Status ParseStatement(Statement& statement) {
    if (cursor_.TakeName("if")) return ParseIf(statement);
    if (cursor_.TakeName("for")) return ParseFor(statement);
    if (cursor_.TakeName("set")) return ParseSet(statement);
    if (cursor_.TakeName("generation")) return ParseGeneration(statement);
    return cursor_.Error(
        absl::StrCat("the block ", cursor_.Shown(), " is not served; served: if, for, set, generation"));
  }

  // After `if` or `elif`.
  absl::Status ParseIf(Statement& statement) {
    statement.kind = Statement::kIf;
    ASSIGN_OR_RETURN(statement.value, ReadExpression(cursor_));
    RETURN_IF_ERROR(cursor_.Expect(Token::kBlockEnd, "%}"));
    RETURN_IF_ERROR(ParseBlock({"elif", "else", "endif"}, statement.body));
    cursor_.Skip();
    if (cursor_.TakeName("elif")) {
      Statement& next = statement.otherwise.emplace_back();
      next.line = cursor_.token().line;
      if (++depth_ > kMaxDepth) return cursor_.Error("blocks are nested too deeply");
      RETURN_IF_ERROR(ParseIf(next));
      --depth_;
      return absl::OkStatus();
    }
    if (cursor_.TakeName("else")) {
      RETURN_IF_ERROR(cursor_.Expect(Token::kBlockEnd, "%}"));
      RETURN_IF_ERROR(ParseBlock({"endif"}, statement.otherwise));
      cursor_.Skip();
    }
    cursor_.Skip();
    return cursor_.Expect(Token::kBlockEnd, "%}");
  }

  absl::Status ParseFor(Statement& statement) {
    statement.kind = Statement::kFor;
    do {
      ASSIGN_OR_RETURN(statement.names.emplace_back(), cursor_.ReadName());
    } while (cursor_.TakeOperator(","));
    if (!cursor_.TakeName("in")) return cursor_.Error(absl::StrCat("\"in\" is expected before ", cursor_.Shown()));
    ASSIGN_OR_RETURN(statement.value, ReadLoopSource(cursor_));
    if (cursor_.TakeName("if")) {
      ASSIGN_OR_RETURN(statement.condition, ReadExpression(cursor_));
    }
    RETURN_IF_ERROR(cursor_.Expect(Token::kBlockEnd, "%}"));
    RETURN_IF_ERROR(ParseBlock({"endfor"}, statement.body));
    cursor_.Skip(2);
    return cursor_.Expect(Token::kBlockEnd, "%}");
  }

  absl::Status ParseGeneration(Statement& statement) {
    statement.kind = Statement::kGeneration;
    RETURN_IF_ERROR(cursor_.Expect(Token::kBlockEnd, "%}"));
    RETURN_IF_ERROR(ParseBlock({"endgeneration"}, statement.body));
    cursor_.Skip(2);
    return cursor_.Expect(Token::kBlockEnd, "%}");
  }

  absl::Status ParseSet(Statement& statement) {
    statement.kind = Statement::kSet;
    ASSIGN_OR_RETURN(statement.names.emplace_back(), cursor_.ReadName());
    if (cursor_.TakeOperator(".")) {
      statement.attribute = true;
      ASSIGN_OR_RETURN(statement.names.emplace_back(), cursor_.ReadName());
    }
    RETURN_IF_ERROR(cursor_.ExpectOperator("="));
    ASSIGN_OR_RETURN(statement.value, ReadExpression(cursor_));
    return cursor_.Expect(Token::kBlockEnd, "%}");
  }

  TokenCursor cursor_;
  int depth_ = 0;  // of blocks
};

}  // namespace

absl::StatusOr<std::vector<Statement>> Parse(const std::string& source) {
  ASSIGN_OR_RETURN(std::vector<Token> tokens, ReadTokens(source));
  return Parser(std::move(tokens)).ParseAll();
}

}  // namespace edgewise::chat
