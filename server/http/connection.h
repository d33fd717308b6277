// One connection of an HTTP port: reads requests one after the other, checks who may ask, and writes the answers.
// Includes Asio and Beast.
#ifndef EDGEWISE_SERVER_HTTP_CONNECTION_H_
#define EDGEWISE_SERVER_HTTP_CONNECTION_H_

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/http/body.h"
#include "server/http/inbox.h"
#include "server/http/port.h"
#include "server/http/transport.h"
#include "server/http/turns.h"

namespace edgewise::server {

// The part of a port that its connections use. It outlives them.
struct ConnectionHost {
  const HttpPortOptions& options;
  const Routes& routes;
  CallParts* const parts;  // may be null
  ConnectionTable* connections = nullptr;
  Turns* turns = nullptr;
  std::atomic<bool> leaving = false;   // every answer is the last of its connection
  std::atomic<bool> draining = false;  // and idle connections close
  std::atomic<int64_t> exchanges = 0;
  CallCounts counts = {};  // come: those with a head; late: their clients have left before their answers
};

// On the strand of its socket, but for GiveUp. Lives as long as an operation or an exchange of it does.
class Connection final : public std::enable_shared_from_this<Connection>, private AwaitedCall {
 public:
  // `peer`: as gRPC names it, without the port. `number`: in ConnectionHost::connections. `closing` is called before
  // the socket is closed; it may be called again.
  Connection(ConnectionHost& host, std::unique_ptr<Transport> transport, std::string peer, uint64_t number,
             std::function<void()> closing);
  ~Connection();

  void Start();  // any thread
  // The host drains: an idle connection closes, another one after its exchange. Any thread.
  void PostDrain();
  // The exchange that is open is cancelled. Also where no thread runs any more.
  void Close();

 private:
  static constexpr std::chrono::milliseconds kLingerTimeout{2000};

  class ConnectionExchange;
  enum class Phase { kHandshake, kHead, kBody, kAnswer, kLinger, kClosed };

  void OnGone();
  // Calls `then` after the timeout, unless armed again.
  void Arm(std::chrono::milliseconds timeout, void (Connection::*then)() = &Connection::OnGone);

  void Read();
  void OnRead(size_t bytes);
  // Reads until a head is whole.
  void AwaitHead();
  void BeginExchange();
  void OnHead(size_t size);
  Exchange& OpenExchange();
  // Whether the open exchange is served, as far as its head tells (admit.cc).
  HttpRefusal Admit(const std::string& head);
  HttpRefusal ReadFields();
  HttpRefusal CheckBrowser();
  HttpRefusal CheckCaller();
  HttpRefusal CheckBody();
  void AnswerOptions();
  void AwaitBody();
  void FeedBody();
  // Reads more of the body. A long one is read in turn with those of other clients.
  void ReadBody();
  HttpRefusal TakeBody();
  bool StopAwaiting();
  void GiveUp(const absl::Status& status) override;
  // The body is whole.
  void Serve();
  // More may have come while the answer is on its way (receive.cc).
  void OnBehind();
  // The connection ends with the answer that is on its way.
  void DropBehind();
  // Whether what came may wait: as much as a head always, and as much as a message where there is memory for it.
  bool HoldBehind();

  // These answer the open exchange; others no longer get here.
  void Refuse(const HttpRefusal& refusal);
  void WriteAnswer(HttpAnswer answer);
  void WriteHead(const HttpAnswer& answer, std::optional<size_t> length);
  void WriteChunk(std::string bytes);
  void EndChunks();
  // To be written by the next WriteNext. `counts`: pieces among those that wait to be sent.
  void Push(std::string bytes, size_t counts = 0);
  void WriteNext();
  void OnAnswered();
  // A request is whole, or its refusal is being written, until OnAnswered.
  void BecomeBusy();
  void Count(int code);
  void Linger();

  ConnectionHost& host_;
  const std::unique_ptr<Transport> transport_;
  const std::string peer_;
  const uint64_t number_;
  const std::function<void()> closing_;
  boost::asio::steady_timer timer_;
  Phase phase_ = Phase::kHandshake;

  std::string incoming_;  // for the read in progress
  bool reading_ = false;
  Inbox inbox_;
  bool head_began_ = false;   // its time runs
  bool empty_line_ = false;   // one was skipped in front of the request line
  bool awaits_body_ = false;  // is among CallParts::awaited
  size_t ignored_ = 0;        // bytes that nothing is made of
  std::optional<boost::beast::http::request_parser<boost::beast::http::empty_body>> parser_;  // of the head
  std::optional<BodyReader> body_;

  std::shared_ptr<ConnectionExchange> exchange_;
  std::vector<std::pair<std::string, std::string>> fields_;  // that go with any answer
  ErrorBody error_ = PlainError;
  bool is_head_ = false;  // the method is HEAD
  bool is_old_ = false;   // the client speaks HTTP/1.0, which has no chunks
  bool chunked_ = false;  // the answer comes in chunks
  bool last_ = true;      // the connection closes after the answer
  int code_ = 0;          // of the answer

  struct Piece {
    std::string bytes;
    size_t counts = 0;  // pieces of the exchange
  };
  std::deque<Piece> out_;
  size_t written_ = 0;  // of the first piece
  bool writing_ = false;
  bool ended_ = false;  // the answer is in out_
  bool busy_ = false;   // BecomeBusy
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_CONNECTION_H_
