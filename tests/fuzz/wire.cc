// Fuzz target of the walk over the bytes of a message before it is parsed.
#include <google/protobuf/arena.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/stubs/logging.h>

#include "edgewise/v1/inference.pb.h"
#include "oip/v2/open_inference.pb.h"
#include "server/wire/wire_check.h"
#include "tests/fuzz/targets.h"

namespace edgewise::fuzz {
namespace {

constexpr uint64_t kArenaBytes = 512;  // of an arena itself, at most

// `piece`: the bytes come in pieces of this size.
absl::Status Walk(const std::string& bytes, const google::protobuf::Descriptor& type, int piece,
                  server::WireCounts& counts) {
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()), piece);
  return server::CheckWire(stream, type, counts);
}

template <typename Message>
void Check(const std::string& bytes, int piece) {
  server::WireCounts whole, pieces;
  const absl::Status status = Walk(bytes, *Message::descriptor(), -1, whole);
  Require(Walk(bytes, *Message::descriptor(), piece, pieces).code() == status.code(),
          "a message is taken or refused however its bytes are cut");
  google::protobuf::Arena arena;
  auto* message = google::protobuf::Arena::CreateMessage<Message>(&arena);
  const bool parsed = message->ParseFromString(bytes);
  if (!status.ok()) {
    RequireReadable(std::string(status.message()));
    Require(!parsed || absl::IsResourceExhausted(status), "a message that can be parsed is not called broken");
    return;
  }
  Require(whole.parts == pieces.parts && whole.parsed_bytes == pieces.parsed_bytes,
          "the counts are the same however the bytes are cut");
  Require(message->SpaceUsedLong() <= whole.parsed_bytes && arena.SpaceUsed() <= whole.parsed_bytes + kArenaBytes,
          "a parsed message takes no more bytes than were counted");
}

}  // namespace

void FuzzWire(const std::string& bytes) {
  static google::protobuf::LogSilencer silence;  // of what it says of every text that is not UTF-8
  if (bytes.empty()) return;
  const auto choice = static_cast<uint8_t>(bytes[0]);
  const int piece = 1 + choice % 128;
  const std::string message = bytes.substr(1);
  choice >= 128  ? Check<v1::GenerateRequest>(message, piece)
  : choice >= 64 ? Check<inference::ModelInferRequest>(message, piece)
                 : Check<v1::PredictRequest>(message, piece);
}

}  // namespace edgewise::fuzz
