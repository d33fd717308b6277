#include "server/base/status_details.h"

#include <gtest/gtest.h>

#include "absl/strings/cord.h"
#include "base/field_error.h"
#include "tests/server/retry_delay.h"

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

TEST(StatusDetailsTest, AFieldBecomesBadRequestWithTheWholeMessage) {
  // Status { code: 3 message: "model is empty" details { type_url value: BadRequest { field_violations {
  //   field: "model" description: "model is empty" } } } }
  const std::string bad_request = "\x0a\x17\x0a\x05model\x12\x0emodel is empty";
  EXPECT_EQ(EncodeStatus(FieldError("model", "is empty")),
            "\x08\x03\x12\x0emodel is empty\x1a\x46\x0a\x29" + std::string(kBadRequestUrl) + "\x12\x19" + bad_request);
}

// A message may quote the first bytes of a text, and end inside a character.
TEST(StatusDetailsTest, AMessageNeedNotBeUtf8) {
  const std::string encoded = EncodeStatus(FieldError("text", "is \"\xc3"));
  EXPECT_EQ(encoded.substr(0, 14), "\x08\x03\x12\x0atext is \"\xc3");
  EXPECT_EQ(encoded.substr(encoded.size() - 20), "\x0a\x12\x0a\x04text\x12\x0atext is \"\xc3");
}

TEST(StatusDetailsTest, OnlyDetailsOfGoogleRpcAreEncoded) {
  EXPECT_EQ(EncodeStatus(absl::InternalError("no details")), "");
  EXPECT_EQ(EncodeStatus(WithRejection(absl::ResourceExhaustedError("full"), Rejection::kQueueFull)), "");
  const std::string encoded = EncodeStatus(ShuttingDown());
  EXPECT_NE(encoded.find(kRetryInfoUrl), std::string::npos);
  EXPECT_EQ(encoded.find("edgewise"), std::string::npos);
}

TEST(StatusDetailsTest, AReasonThatIsSetGoesBeforeThatOfTheCode) {
  EXPECT_EQ(RejectionOf(absl::ResourceExhaustedError("windows")), Rejection::kInvalid);
  EXPECT_EQ(RejectionOf(WithRejection(absl::ResourceExhaustedError("full"), Rejection::kQueueFull)),
            Rejection::kQueueFull);
  EXPECT_EQ(RejectionOf(ShuttingDown()), Rejection::kDraining);
  EXPECT_EQ(RejectionOf(absl::UnavailableError("loading")), Rejection::kNotReady);
  EXPECT_EQ(RejectionOf(absl::InternalError("broken")), std::nullopt);
  EXPECT_EQ(RejectionOf(absl::OkStatus()), std::nullopt);
}

}  // namespace
}  // namespace edgewise::server
