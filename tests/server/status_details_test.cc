#include "server/status_details.h"

#include <gtest/gtest.h>

#include "absl/strings/cord.h"

namespace edgewise::server {
namespace {

TEST(StatusDetailsTest, RetryInfoHasTheBytesOfGoogleRpc) {
  absl::Status status = absl::ResourceExhaustedError("full");
  SetRetryDelay(status, 1.5);
  // RetryInfo { retry_delay { seconds: 1 nanos: 500000000 } }
  const std::string expected("\x0a\x08\x08\x01\x10\x80\xca\xb5\xee\x01", 10);
  EXPECT_EQ(std::string(*status.GetPayload(kRetryInfoUrl)), expected);
  EXPECT_DOUBLE_EQ(RetryDelay(status), 1.5);
  EXPECT_LT(RetryDelay(absl::ResourceExhaustedError("full")), 0.0);
  EXPECT_EQ(RetryDelay(ShuttingDown()), 1.0);
  SetRetryDelay(status, 0.0);
  EXPECT_EQ(RetryDelay(status), 0.0);
  status.SetPayload(kRetryInfoUrl, absl::Cord("\x0a\x08"));
  EXPECT_LT(RetryDelay(status), 0.0) << "cut off";
}

TEST(StatusDetailsTest, InvalidFieldNamesTheFieldInMessageAndDetails) {
  const absl::Status status = InvalidField("model", "is empty");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "model is empty");
  // BadRequest { field_violations { field: "model" description: "model is empty" } }
  EXPECT_EQ(std::string(*status.GetPayload(kBadRequestUrl)), "\x0a\x17\x0a\x05model\x12\x0emodel is empty");
}

// A message may quote the first bytes of a text, and end inside a character.
TEST(StatusDetailsTest, AMessageNeedNotBeUtf8) {
  const absl::Status status = InvalidField("text", "is \"\xc3");
  EXPECT_EQ(std::string(*status.GetPayload(kBadRequestUrl)), "\x0a\x12\x0a\x04text\x12\x0atext is \"\xc3");
  EXPECT_EQ(EncodeStatus(status).substr(0, 14), "\x08\x03\x12\x0atext is \"\xc3");
}

TEST(StatusDetailsTest, EncodedStatusCarriesCodeMessageAndDetails) {
  EXPECT_EQ(EncodeStatus(absl::InternalError("no details")), "");
  const std::string encoded = EncodeStatus(InvalidField("a", "b"));
  EXPECT_EQ(encoded.substr(0, 7), std::string("\x08\x03\x12\x03"
                                              "a b",
                                              7));
  EXPECT_NE(encoded.find(kBadRequestUrl), std::string::npos);
}

}  // namespace
}  // namespace edgewise::server
