#include "base/field_error.h"

#include <gtest/gtest.h>

#include <string>

namespace edgewise {
namespace {

TEST(FieldErrorTest, MessageBeginsWithTheFieldAndThePayloadIsTheField) {
  const absl::Status status = FieldError("token_ids[3]", "is 40; the vocabulary has 40 entries");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "token_ids[3] is 40; the vocabulary has 40 entries");
  EXPECT_EQ(FieldOf(status), "token_ids[3]");
  EXPECT_EQ(FieldError("text", ": no tokenizer").message(), "text: no tokenizer");
  EXPECT_EQ(FieldOf(FieldError("text", ": no tokenizer")), "text");
}

TEST(FieldErrorTest, WithinPrefixesFieldAndMessageAtEveryLevel) {
  const absl::Status status =
      Within("inputs[2]", Within("graph.layers[1].heads[0]", FieldError("keys[7]", "is 9 of query 3")));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "inputs[2].graph.layers[1].heads[0].keys[7] is 9 of query 3");
  EXPECT_EQ(FieldOf(status), "inputs[2].graph.layers[1].heads[0].keys[7]");
}

// The field does not come from the message, whatever that says.
TEST(FieldErrorTest, AStatusWithoutAFieldKeepsItsCodeAndGetsNone) {
  const absl::Status status = Within("inputs[0]", absl::ResourceExhaustedError("token_ids has 9 windows"));
  EXPECT_EQ(status, absl::ResourceExhaustedError("inputs[0]: token_ids has 9 windows"));
  EXPECT_EQ(FieldOf(status), "");
  EXPECT_EQ(FieldOf(absl::InvalidArgumentError("stride is 3")), "");
  EXPECT_EQ(FieldOf(absl::OkStatus()), "");
}

TEST(QuotedTest, IsEscapedAndCut) {
  EXPECT_EQ(Quoted("a\n\x1b\""), "\"a\\n\\x1b\\\"\"");
  EXPECT_EQ(Quoted(std::string(64, 'A')), "\"" + std::string(64, 'A') + "\"");
  EXPECT_EQ(Quoted(std::string(65, 'A')), "\"" + std::string(64, 'A') + "\"... (65 bytes)");
}

}  // namespace
}  // namespace edgewise
