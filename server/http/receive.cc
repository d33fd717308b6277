// The part of a connection that reads: heads, bodies, and what comes behind a request whose answer is on its way.
#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/http/connection.h"
#include "server/http/head.h"
#include "server/observe/log.h"

namespace edgewise::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr size_t kReadAtOnce = 1024, kReadMuch = 32 << 10;
constexpr size_t kMostIgnored = 1 << 20;  // of a body that is refused, or behind the last request
// A body grows to twice its size; a reader of JSON holds a string twice.
constexpr uint64_t kBytesOfByte = 2;
constexpr uint64_t kBytesBehind = 4;  // of a byte in an Inbox
constexpr char kTlsHandshake = 22;    // the first byte of a client that speaks TLS

// A client that speaks TLS cannot read an answer in plain text, so a line in the log is all that can be done.
void LogTls(const std::string& flag, const std::string& peer) {
  static absl::Mutex mutex(absl::kConstInit);
  static LogLimiter& limiter ABSL_GUARDED_BY(mutex) = *new LogLimiter;
  uint64_t suppressed = 0;
  {
    const absl::MutexLock lock(&mutex);
    if (!limiter.Allow("TLS", Clock::now(), suppressed)) return;
  }
  const std::string error = absl::StrCat("a client speaks TLS to ", flag, ", where plain text is expected");
  Log(LogLevel::kWarning, "TLS", {{"error", error}, {"peer", peer}, {"suppressed", suppressed}});
}

}  // namespace

void Connection::Read() {
  if (reading_ || phase_ == Phase::kClosed) return;
  reading_ = true;
  const size_t most = phase_ == Phase::kBody || inbox_.size() > kReadAtOnce ? kReadMuch : kReadAtOnce;
  if (incoming_.size() > most) incoming_ = std::string();  // an idle connection keeps little
  incoming_.resize(most);
  transport_->Read(asio::buffer(incoming_), [self = shared_from_this()](const Transport::Error& error, size_t bytes) {
    self->reading_ = false;
    error ? self->OnGone() : self->OnRead(bytes);
  });
}

void Connection::OnRead(size_t bytes) {
  if (phase_ == Phase::kLinger) {
    ignored_ += bytes;
    return ignored_ < kMostIgnored ? Read() : Close();
  }
  inbox_.Append(std::string_view(incoming_).substr(0, bytes));
  switch (phase_) {
    case Phase::kHead:
      return AwaitHead();
    case Phase::kBody:
      return FeedBody();
    case Phase::kAnswer:
      return OnBehind();
    default:
      return;
  }
}

void Connection::AwaitHead() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kHead;
  if (inbox_.view().substr(0, 2) == "\r\n" && !std::exchange(empty_line_, true)) inbox_.Use(2);  // RFC 9112, 2.2
  if (!inbox_.empty() && inbox_.view().front() == kTlsHandshake) {
    LogTls(host_.options.flag, peer_);
    return Close();
  }
  const std::string_view head = inbox_.view().substr(0, kMaxHeadBytes);
  if (const size_t end = head.find("\r\n\r\n"); end != std::string_view::npos) return OnHead(end + 4);
  if (head.size() == kMaxHeadBytes) {
    BeginExchange();
    return Refuse({431, absl::InvalidArgumentError(absl::StrCat("the head is over ", kMaxHeadBytes, " bytes"))});
  }
  if (HasBareLineFeed(head)) {  // the end that is looked for may not come
    BeginExchange();
    return Refuse({400, absl::InvalidArgumentError("the head has a line that does not end with CR LF")});
  }
  if (inbox_.empty()) {
    head_began_ = false;
    // While the host drains it is the first request of a connection that waited in the port's line.
    Arm(host_.draining ? kLingerTimeout : host_.options.idle_timeout, &Connection::Linger);
  } else if (!std::exchange(head_began_, true)) {
    Arm(host_.options.head_timeout);
  }
  Read();
}

void Connection::OnHead(size_t size) {
  BeginExchange();
  const std::string head(inbox_.view().substr(0, size));
  inbox_.Use(size);
  const HttpRefusal refusal = Admit(head);
  if (refusal.code == 204) return AnswerOptions();
  if (refusal.code != 0) return Refuse(refusal);
  parser_->is_done() ? Serve() : AwaitBody();
}

void Connection::AwaitBody() {
  phase_ = Phase::kBody;
  const absl::Status status =
      host_.parts->awaited.Add(*this, host_.parts->options.message_timeout, OpenExchange().account.get());
  if (!status.ok()) return Refuse({HttpCodeOf(status), status});
  awaits_body_ = true;
  timer_.cancel();
  const auto length = parser_->content_length();
  body_ = length ? BodyReader::OfLength(*length) : BodyReader::OfChunks(host_.parts->message_limit());
  if (beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    Push("HTTP/1.1 100 Continue\r\n\r\n");
    WriteNext();
  }
  FeedBody();
}

void Connection::FeedBody() {
  const HttpRefusal refusal = TakeBody();
  if (refusal.code != 0) return Refuse(refusal);
  if (!body_->done()) return ReadBody();
  if (StopAwaiting()) Serve();
}

void Connection::ReadBody() {
  const Exchange& exchange = OpenExchange();
  if (exchange.request.body.size() <= kShortMessage || host_.exchanges.load() == 1) return Read();
  host_.turns->Start(exchange.call.principal.name, [self = shared_from_this()] {
    asio::dispatch(self->transport_->socket().get_executor(), [self] {
      if (self->phase_ == Phase::kBody) self->Read();
    });
  });
}

HttpRefusal Connection::TakeBody() {
  Exchange& exchange = OpenExchange();
  std::string& body = exchange.request.body;
  const auto bytes_of = [](uint64_t size) { return std::max<uint64_t>(kSilentCallBytes, kBytesOfByte * size); };
  const absl::Status status = exchange.body_memory.Resize(bytes_of(body.size() + body_->MostIn(inbox_.size())));
  if (!status.ok()) return {HttpCodeOf(status), status};
  inbox_.Use(body_->Read(inbox_.view(), body));
  exchange.body_memory.Shrink(bytes_of(body.size()));
  return body_->refusal();
}

bool Connection::HoldBehind() {
  Exchange& exchange = OpenExchange();
  const uint64_t bytes = inbox_.size();
  if (bytes <= kMaxHeadBytes) {
    exchange.behind.Shrink(0);
    return true;
  }
  if (!exchange.account || bytes > kMaxHeadBytes + host_.parts->message_limit()) return false;
  return exchange.behind.Resize(kBytesBehind * bytes).ok();
}

void Connection::DropBehind() {
  last_ = true;
  inbox_.Clear();
  OpenExchange().behind.Shrink(0);
}

// Reading goes on, since it tells when the client goes. Behind an open route, which anybody may ask, it pauses: there
// is no work to end. The bytes are kept for later, but for those that the exchange cannot hold: these get no answer,
// and the connection ends with the answer that is on its way.
void Connection::OnBehind() {
  if (!last_ && HoldBehind()) {
    const bool pauses = OpenExchange().route->open && inbox_.size() > kMaxHeadBytes;
    return pauses ? void() : Read();
  }
  if (last_) ignored_ += inbox_.size();
  DropBehind();
  ignored_ < kMostIgnored ? Read() : Close();
}

}  // namespace edgewise::server
