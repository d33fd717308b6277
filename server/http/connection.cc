#include "server/http/connection.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/status_details.h"
#include "server/http/head.h"

namespace edgewise::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr std::chrono::milliseconds kHandshakeTimeout{10000};
constexpr size_t kWriteAtOnce = 256 << 10;
constexpr size_t kJoinedBytes = 16 << 10;  // short pieces are written together
constexpr int kClientGone = 499;

std::string HttpDate() { return absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()); }

}  // namespace

// Answers on the strand, whoever calls.
class Connection::ConnectionExchange final : public Exchange {
 public:
  explicit ConnectionExchange(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {
    connection_->host_.exchanges.fetch_add(1);
  }
  ~ConnectionExchange() override { Leave(); }

  void Begin(const std::string& type) override {
    Post([type](Connection& connection) {
      // nginx keeps events back until a buffer is full, unless it is told not to.
      connection.WriteHead({.type = type, .fields = {{"X-Accel-Buffering", "no"}}}, std::nullopt);
      connection.WriteNext();
    });
  }
  void Send(std::string bytes) override {
    unsent_.fetch_add(1);
    Post([bytes = std::move(bytes)](Connection& connection) mutable { connection.WriteChunk(std::move(bytes)); });
  }
  bool full() const override {
    const CallParts* parts = connection_->host_.parts;
    return parts != nullptr && unsent_.load(std::memory_order_relaxed) >= parts->options.unsent_tokens;
  }
  // These pieces were sent.
  void OnSent(size_t pieces) {
    CallParts* parts = connection_->host_.parts;
    if (unsent_.fetch_sub(pieces) >= parts->options.unsent_tokens) parts->handler.Wake();
  }
  absl::Status Continue() override {
    CallParts* parts = connection_->host_.parts;
    return parts != nullptr ? parts->handler.CheckWanted(cancelled.get_token(), deadline) : absl::OkStatus();
  }
  // The client is gone.
  void Cancel() {
    cancelled.request_stop();
    if (connection_->host_.parts != nullptr) connection_->host_.parts->handler.Wake();
  }
  void Record(const absl::Status& status, int code) override {
    if (connection_->host_.parts != nullptr) connection_->host_.parts->calls.End(call, status, code);
  }
  // It does not count any more: it is answered, or nobody reads the answer.
  void Leave() {
    behind.Shrink(0);
    if (!std::exchange(left_, true)) connection_->host_.exchanges.fetch_sub(1);
  }

 private:
  void Write(HttpAnswer answer) override {
    Post([answer = std::move(answer)](Connection& connection) mutable { connection.WriteAnswer(std::move(answer)); });
  }
  void EndChunks() override {
    Post([](Connection& connection) { connection.EndChunks(); });
  }
  template <typename Step>
  void Post(Step step) {
    asio::post(
        connection_->transport_->socket().get_executor(),
        [self = std::static_pointer_cast<ConnectionExchange>(shared_from_this()), step = std::move(step)]() mutable {
          if (self->connection_->exchange_ == self) step(*self->connection_);
        });
  }

  const std::shared_ptr<Connection> connection_;
  std::atomic<size_t> unsent_ = 0;
  bool left_ = false;  // on the strand, or at the end
};

Connection::Connection(ConnectionHost& host, std::unique_ptr<Transport> transport, std::string peer, uint64_t number,
                       std::function<void()> closing)
    : host_(host),
      transport_(std::move(transport)),
      peer_(std::move(peer)),
      number_(number),
      closing_(std::move(closing)),
      timer_(transport_->socket().get_executor()) {}

Connection::~Connection() { closing_(); }

Exchange& Connection::OpenExchange() { return *exchange_; }

void Connection::Start() {
  asio::post(transport_->socket().get_executor(), [self = shared_from_this()] {
    self->Arm(kHandshakeTimeout);
    self->transport_->Handshake([self](const Transport::Error& error) { error ? self->Close() : self->AwaitHead(); });
  });
}

void Connection::PostDrain() {
  asio::post(transport_->socket().get_executor(), [self = shared_from_this()] {
    self->last_ = true;
    Transport::Error ignored;
    const bool idle = self->phase_ == Phase::kHead && self->inbox_.empty();
    if (idle && self->transport_->socket().available(ignored) == 0) self->Linger();
  });
}

void Connection::Arm(std::chrono::milliseconds timeout, void (Connection::*then)()) {
  timer_.expires_after(timeout);
  timer_.async_wait([self = shared_from_this(), then](const Transport::Error& error) {
    if (!error && Clock::now() >= self->timer_.expiry()) (self.get()->*then)();
  });
}

void Connection::OnGone() {
  if (phase_ == Phase::kBody) {
    if (!StopAwaiting()) return;  // GiveUp has an answer
    if (host_.parts != nullptr) host_.parts->gate.counts.abandoned.fetch_add(1, std::memory_order_relaxed);
  }
  Close();
}

void Connection::BeginExchange() {
  host_.counts.come.fetch_add(1, std::memory_order_relaxed);
  exchange_ = std::make_shared<ConnectionExchange>(shared_from_this());
  exchange_->call.http = true;
  exchange_->call.peer = exchange_->call.principal.name = peer_;
  exchange_->call.arrival = host_.parts != nullptr ? host_.parts->options.clock() : Clock::now();
  head_began_ = empty_line_ = is_head_ = is_old_ = chunked_ = ended_ = false;
  last_ = true;  // until the head is read
  code_ = 0;
  error_ = PlainError;
  fields_.clear();
}

bool Connection::StopAwaiting() { return !std::exchange(awaits_body_, false) || host_.parts->awaited.Remove(*this); }

void Connection::GiveUp(const absl::Status& status) {
  asio::post(transport_->socket().get_executor(), [self = shared_from_this(), status] {
    self->awaits_body_ = false;
    if (self->phase_ != Phase::kBody) return;
    self->Refuse({absl::IsDeadlineExceeded(status) ? 408 : HttpCodeOf(status), status});
  });
}

void Connection::BecomeBusy() {
  if (!std::exchange(busy_, true)) host_.connections->Begin(number_);
}

void Connection::Serve() {
  phase_ = Phase::kAnswer;
  BecomeBusy();
  timer_.cancel();
  parser_.reset();
  if (!reading_) incoming_ = std::string();  // an idle connection keeps little
  const std::shared_ptr<Exchange> exchange = exchange_;
  const Route& route = *exchange->route;
  exchange->apart = host_.parts != nullptr && (route.apart || exchange->request.body.size() > kShortMessage);
  if (host_.parts != nullptr && !exchange->apart && route.rpc == Rpc::kPredict) {
    exchange->alone = host_.parts->IsAlone(reinterpret_cast<size_t>(this));
  }
  if (!exchange->apart && (host_.parts == nullptr || route.open || host_.exchanges.load() == 1)) {
    route.serve(exchange);  // soon done, or nobody waits
  } else {
    RequestHandler& handler = host_.parts->handler;
    const auto serve = [exchange, &handler](const absl::Status& refused) {
      const Route& served = *exchange->route;
      const absl::Status status =
          refused.ok() ? handler.CheckWanted(exchange->cancelled.get_token(), exchange->deadline) : refused;
      if (status.ok()) return served.serve(exchange);
      exchange->Refuse(status);
    };
    if (exchange->apart) {
      handler.preparations().Start(exchange->call.principal.name, serve);
    } else {
      host_.turns->Start(exchange->call.principal.name, [serve] { serve(absl::OkStatus()); });
    }
  }
  OnBehind();
}

void Connection::Refuse(const HttpRefusal& refusal) {
  StopAwaiting();
  exchange_->Record(refusal.status, refusal.code);
  last_ |= parser_ && !parser_->is_done();
  exchange_->body_memory.Shrink(0);
  exchange_->request.body = std::string();
  if (!HoldBehind()) DropBehind();
  WriteAnswer(ErrorAnswer(refusal, error_));
}

void Connection::WriteAnswer(HttpAnswer answer) {
  WriteHead(answer, answer.body.size());
  if (!is_head_) Push(std::move(answer.body));
  ended_ = true;
  WriteNext();
}

void Connection::WriteHead(const HttpAnswer& answer, std::optional<size_t> length) {
  phase_ = Phase::kAnswer;
  BecomeBusy();
  code_ = answer.code;
  chunked_ = !length && !is_head_ && !is_old_;
  last_ |= host_.leaving || (!length && is_old_);
  const beast::string_view reason = http::obsolete_reason(static_cast<http::status>(answer.code));
  std::string head = absl::StrCat("HTTP/1.1 ", answer.code, " ", std::string(reason), "\r\nDate: ", HttpDate(), "\r\n");
  if (!answer.type.empty()) absl::StrAppend(&head, "Content-Type: ", answer.type, "\r\n");
  if (length && answer.code != 204 && answer.code != 304) absl::StrAppend(&head, "Content-Length: ", *length, "\r\n");
  if (chunked_) absl::StrAppend(&head, "Transfer-Encoding: chunked\r\n");
  absl::StrAppend(&head, "Cache-Control: ", answer.cache, "\r\nX-Content-Type-Options: nosniff\r\n");
  for (const auto& [name, value] : answer.fields) absl::StrAppend(&head, name, ": ", value, "\r\n");
  for (const auto& [name, value] : fields_) absl::StrAppend(&head, name, ": ", value, "\r\n");
  absl::StrAppend(&head, last_ ? "Connection: close\r\n" : is_old_ ? "Connection: keep-alive\r\n" : "", "\r\n");
  Push(std::move(head));
}

void Connection::WriteChunk(std::string bytes) {
  if (chunked_) bytes = absl::StrCat(absl::Hex(bytes.size()), "\r\n", bytes, "\r\n");
  Push(std::move(bytes), 1);
  WriteNext();
}

void Connection::EndChunks() {
  if (chunked_) Push("0\r\n\r\n");
  ended_ = true;
  WriteNext();
}

void Connection::Push(std::string bytes, size_t counts) {
  const bool joins = out_.size() > (writing_ ? 1 : 0) && out_.back().bytes.size() + bytes.size() <= kJoinedBytes;
  if (!joins) return out_.push_back({std::move(bytes), counts});
  out_.back().bytes += bytes;
  out_.back().counts += counts;
}

void Connection::WriteNext() {
  if (writing_ || phase_ == Phase::kClosed) return;
  while (!out_.empty() && written_ == out_.front().bytes.size()) {
    if (out_.front().counts > 0) exchange_->OnSent(out_.front().counts);
    out_.pop_front();
    written_ = 0;
  }
  if (out_.empty()) return ended_ ? OnAnswered() : void();
  writing_ = true;
  if (phase_ == Phase::kAnswer) Arm(host_.options.write_timeout);
  const std::string& bytes = out_.front().bytes;
  const size_t size = std::min(bytes.size() - written_, kWriteAtOnce);
  transport_->Write(asio::buffer(bytes.data() + written_, size),
                    [self = shared_from_this(), size](const Transport::Error& error, size_t) {
                      self->writing_ = false;
                      if (error) return self->OnGone();
                      if (self->phase_ == Phase::kAnswer) self->timer_.cancel();
                      self->written_ += size;
                      self->WriteNext();
                    });
}

void Connection::OnAnswered() {
  Count(code_);
  if (std::exchange(busy_, false)) host_.connections->End(number_);
  exchange_->Leave();
  exchange_.reset();
  ended_ = false;
  parser_.reset();
  last_ ? Linger() : AwaitHead();
}

void Connection::Count(int code) {
  if (host_.parts != nullptr) {
    host_.parts->metrics.CountHttp(exchange_->route != nullptr ? exchange_->route->path : "_other", code);
  }
}

// A socket that closes with unread bytes resets the connection, and the client would never see the answer.
void Connection::Linger() {
  phase_ = Phase::kLinger;
  inbox_.Clear();
  transport_->EndWrites([self = shared_from_this()](const Transport::Error&) {});
  Arm(kLingerTimeout);
  Read();
}

void Connection::Close() {
  if (phase_ == Phase::kClosed) return;
  StopAwaiting();
  if (phase_ == Phase::kBody) exchange_->Record(absl::CancelledError("the client is gone"), kClientGone);
  phase_ = Phase::kClosed;
  timer_.cancel();
  closing_();
  Transport::Error ignored;
  transport_->socket().close(ignored);
  out_.clear();
  if (!exchange_) return;
  host_.counts.late.fetch_add(1, std::memory_order_relaxed);
  Count(kClientGone);
  exchange_->Cancel();
  exchange_->Leave();
  exchange_.reset();
}

}  // namespace edgewise::server
