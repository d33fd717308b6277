// An open loop of Predict calls from one thread: calls begin at the points of a Poisson process, however long answers
// take. A call costs a fraction of one of `edgewise bench --rate`, so that one core can offer more than a server on
// another can answer: requests are serialised once, and the calls of a tick go in one write. Times are whole ticks late
// at most.
#include <arpa/inet.h>
#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "bench/flags.h"
#include "edgewise/v1/inference.pb.h"

namespace edgewise::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kCallsOfConnection = 96;  // at a time; our servers allow 100
constexpr std::chrono::microseconds kTick{200};
constexpr double kReconnectSeconds = 0.1;  // after a connection has ended

[[noreturn]] void Die(std::string_view why) {
  std::fprintf(stderr, "flood: %.*s\n", static_cast<int>(why.size()), why.data());
  std::exit(1);
}

struct Options {
  std::string server, model, input, json, calls, rate, duration, timeout;
  int concurrency = 1024;
};

// The number of "4s" or "4".
double PositiveOf(const std::string& text) {
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (!(seconds > 0.0) || (*end != '\0' && std::string_view(end) != "s")) Die("no duration or rate: \"" + text + "\"");
  return seconds;
}

// One gRPC message for each line of a file of inputs.
std::vector<std::string> ReadRequests(const Options& options) {
  std::ifstream lines(options.input);
  std::vector<std::string> requests;
  google::protobuf::util::JsonParseOptions parse;
  parse.ignore_unknown_fields = true;  // labels
  for (std::string line; std::getline(lines, line);) {
    v1::PredictRequest request;
    request.set_model(options.model);
    v1::Sequence& sequence = *request.add_inputs()->mutable_sequence();
    if (!google::protobuf::util::JsonStringToMessage(line, &sequence, parse).ok()) Die("no input: " + line);
    const std::string message = request.SerializeAsString();
    const uint32_t size = htonl(static_cast<uint32_t>(message.size()));
    requests.push_back(std::string(1, '\0') + std::string(reinterpret_cast<const char*>(&size), 4) + message);
  }
  if (requests.empty()) Die("no input in " + options.input);
  return requests;
}

class Connection;

struct Call {
  const std::string* request = nullptr;
  Connection* connection = nullptr;
  int32_t stream = 0;
  double due = 0.0, begun = 0.0, end = -1.0;  // seconds since the load began
  absl::StatusCode code = absl::StatusCode::kUnavailable;
  size_t sent = 0;     // bytes of the request
  std::string answer;  // so far
  uint64_t outputs = 0, queue_us = 0, compute_us = 0, batch_inputs = 0, samples = 0;
  double edges = 0.0;

  bool ended() const { return end >= 0.0; }
  void End(double now, absl::StatusCode status) {
    end = now;
    code = status;
    v1::PredictResponse response;
    if (code == absl::StatusCode::kOk) {
      if (answer.size() < 5 || !response.ParseFromArray(answer.data() + 5, static_cast<int>(answer.size() - 5))) {
        Die("an answer that is no PredictResponse");
      }
      outputs = static_cast<uint64_t>(response.predictions_size());
      queue_us = response.timing().queue_us();
      compute_us = response.timing().compute_us();
      batch_inputs = response.timing().batch_inputs();
      samples = outputs > 0 ? response.predictions(0).samples() : 0;
      for (const v1::Prediction& prediction : response.predictions()) edges += prediction.edges().edges();
    }
    answer = std::string();
  }
};

// HTTP/2 over one socket. Its callbacks have the time of the tick.
class Connection {
 public:
  Connection(const Options& options, const double& now) : options_(options), now_(now) {
    const size_t colon = options.server.rfind(':');
    sockaddr_in address{.sin_family = AF_INET};
    if (colon == std::string::npos ||
        inet_pton(AF_INET, options.server.substr(0, colon).c_str(), &address.sin_addr) != 1) {
      Die("--server is no IPv4 address with a port: " + options.server);
    }
    address.sin_port = htons(static_cast<uint16_t>(std::atoi(options.server.c_str() + colon + 1)));
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) Die("cannot connect");
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(socket_, F_SETFL, O_NONBLOCK);
    timeout_ = absl::StrCat(static_cast<int64_t>(1e3 * PositiveOf(options.timeout)), "m");

    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(
        callbacks, [](nghttp2_session* session, const nghttp2_frame* frame, const uint8_t* name, size_t name_size,
                      const uint8_t* value, size_t value_size, uint8_t, void*) {
          Call* call = Of(session, frame->hd.stream_id);
          const std::string text(reinterpret_cast<const char*>(value), value_size);
          if (call && std::string_view(reinterpret_cast<const char*>(name), name_size) == "grpc-status") {
            call->code = static_cast<absl::StatusCode>(std::atoi(text.c_str()));
          }
          return 0;
        });
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        callbacks, [](nghttp2_session* session, uint8_t, int32_t stream, const uint8_t* data, size_t size, void*) {
          if (Call* call = Of(session, stream)) call->answer.append(reinterpret_cast<const char*>(data), size);
          return 0;
        });
    nghttp2_session_callbacks_set_on_stream_close_callback(
        callbacks, [](nghttp2_session* session, int32_t stream, uint32_t, void* user) {
          auto& connection = *static_cast<Connection*>(user);
          --connection.open_;
          Call* call = Of(session, stream);
          if (call && !call->ended()) call->End(connection.now_, call->code);
          return 0;
        });
    nghttp2_session_client_new(&session_, callbacks, this);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, nullptr, 0);
  }
  ~Connection() {
    nghttp2_session_del(session_);
    close(socket_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool has_room() const { return alive_ && open_ < kCallsOfConnection; }
  bool alive() const { return alive_; }
  double ended() const { return ended_; }  // where it is not alive; seconds since the load began
  int descriptor() const { return socket_; }

  void Begin(Call& call) {
    const auto field = [](std::string_view name, std::string_view value) {
      const auto bytes = [](std::string_view text) {
        return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));  // nghttp2 only reads
      };
      return nghttp2_nv{bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
    };
    const nghttp2_nv headers[] = {field(":method", "POST"),
                                  field(":scheme", "http"),
                                  field(":path", "/edgewise.v1.InferenceService/Predict"),
                                  field(":authority", options_.server),
                                  field("te", "trailers"),
                                  field("content-type", "application/grpc"),
                                  field("grpc-timeout", timeout_)};
    nghttp2_data_provider body;
    body.source.ptr = &call;
    body.read_callback = [](nghttp2_session*, int32_t, uint8_t* to, size_t room, uint32_t* flags,
                            nghttp2_data_source* source, void*) {
      Call& call = *static_cast<Call*>(source->ptr);
      const size_t size = std::min(room, call.request->size() - call.sent);
      std::copy_n(call.request->data() + call.sent, size, to);
      call.sent += size;
      if (call.sent == call.request->size()) *flags |= NGHTTP2_DATA_FLAG_EOF;
      return static_cast<ssize_t>(size);
    };
    call.connection = this;
    call.begun = now_;
    call.stream = nghttp2_submit_request(session_, nullptr, headers, std::size(headers), &body, &call);
    if (call.stream < 0) Die(nghttp2_strerror(call.stream));
    ++open_;
  }
  void Cancel(const Call& call) {
    if (alive_) nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, call.stream, NGHTTP2_CANCEL);
  }

  void Send() {
    const uint8_t* data = nullptr;
    while (alive_) {
      const ssize_t size = nghttp2_session_mem_send(session_, &data);
      if (size <= 0) break;
      out_.append(reinterpret_cast<const char*>(data), static_cast<size_t>(size));
    }
    if (out_.empty()) return;
    const ssize_t sent = send(socket_, out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent > 0) out_.erase(0, static_cast<size_t>(sent));
    if (sent < 0 && errno != EAGAIN) End();
  }
  void Receive() {
    uint8_t data[1 << 16];
    for (ssize_t size = sizeof data; alive_ && size == sizeof data;) {
      size = recv(socket_, data, sizeof data, 0);
      if (size == 0 || (size < 0 && errno != EAGAIN)) End();
      if (size > 0 && nghttp2_session_mem_recv(session_, data, static_cast<size_t>(size)) < 0) End();
    }
  }

 private:
  void End() {
    alive_ = false;
    ended_ = now_;
    shutdown(socket_, SHUT_RDWR);
  }
  static Call* Of(nghttp2_session* session, int32_t stream) {
    return static_cast<Call*>(nghttp2_session_get_stream_user_data(session, stream));
  }

  const Options& options_;
  const double& now_;
  std::string timeout_;
  int socket_ = -1;
  nghttp2_session* session_ = nullptr;
  size_t open_ = 0;  // streams
  bool alive_ = true;
  double ended_ = 0.0;
  std::string out_;
};

class Flood {
 public:
  explicit Flood(const Options& options)
      : options_(options),
        requests_(ReadRequests(options)),
        duration_(PositiveOf(options.duration)),
        timeout_(PositiveOf(options.timeout)),
        gap_(PositiveOf(options.rate)) {
    for (int calls = 0; calls < options.concurrency; calls += kCallsOfConnection) {
      connections_.push_back(std::make_unique<Connection>(options, now_));
      sockets_.push_back({connections_.back()->descriptor(), POLLIN, 0});
    }
  }

  void Run() {
    Talk();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // settings come
    const Clock::time_point start = Clock::now();
    double arrival = gap_(random_);
    for (auto tick = start; arrival < duration_ || oldest_ < calls_.size();
         tick = std::max(tick + kTick, Clock::now())) {
      std::this_thread::sleep_until(tick);
      now_ = std::chrono::duration<double>(Clock::now() - start).count();
      for (; arrival < std::min(now_, duration_); arrival += gap_(random_)) {
        if (Begin(arrival)) continue;
        if (now_ < duration_) break;
        ++unsent_;
      }
      Expire();
      Talk();
      turn_ = (turn_ + 1) % connections_.size();  // the next tick's calls go on another connection
    }
  }

  void Write() const {
    std::ofstream(options_.json) << absl::StrCat("{\"unsent\": ", unsent_, "}\n");
    std::ofstream calls(options_.calls);
    for (const Call& call : calls_) {
      calls << absl::StrCat("{\"due\":", call.due, ",\"begun\":", call.begun, ",\"end\":", call.end, ",\"code\":\"",
                            absl::StatusCodeToString(call.code), "\",\"outputs\":", call.outputs,
                            ",\"queue_us\":", call.queue_us, ",\"compute_us\":", call.compute_us)
            << absl::StrCat(",\"batch_inputs\":", call.batch_inputs, ",\"samples\":", call.samples,
                            ",\"edges\":", call.edges, "}\n");
    }
  }

 private:
  // False: as many calls run as may.
  bool Begin(double due) {
    for (size_t tried = 0; !connections_[turn_]->has_room(); turn_ = (turn_ + 1) % connections_.size()) {
      if (++tried == connections_.size()) return false;
    }
    Call& call = calls_.emplace_back();
    call.request = &requests_[calls_.size() % requests_.size()];
    call.due = due;
    connections_[turn_]->Begin(call);
    return true;
  }

  // Calls have begun in the order of their deadlines.
  void Expire() {
    for (; oldest_ < calls_.size(); ++oldest_) {
      Call& call = calls_[oldest_];
      if (call.ended()) continue;
      if (!call.connection->alive()) {
        call.End(now_, absl::StatusCode::kUnavailable);
      } else if (now_ - call.begun >= timeout_) {
        call.connection->Cancel(call);
        call.End(now_, absl::StatusCode::kDeadlineExceeded);
      } else {
        break;
      }
    }
  }

  void Talk() {
    for (const auto& connection : connections_) connection->Send();
    poll(sockets_.data(), sockets_.size(), 0);
    for (size_t c = 0; c < connections_.size(); ++c) {
      if (sockets_[c].revents != 0) connections_[c]->Receive();
      if (!connections_[c]->alive()) Reconnect(c);
    }
  }

  void Reconnect(size_t c) {
    sockets_[c].fd = -1;
    if (now_ < connections_[c]->ended() + kReconnectSeconds) return;
    ended_.push_back(std::exchange(connections_[c], std::make_unique<Connection>(options_, now_)));
    sockets_[c].fd = connections_[c]->descriptor();
  }

  const Options& options_;
  const std::vector<std::string> requests_;
  const double duration_, timeout_;
  std::mt19937_64 random_{1};
  std::exponential_distribution<double> gap_;
  double now_ = 0.0;  // seconds since the load began, at this tick
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<Connection>> ended_;  // their calls may still name them
  std::vector<pollfd> sockets_;
  size_t turn_ = 0;         // of connections_
  std::deque<Call> calls_;  // in the order in which they began
  size_t oldest_ = 0;       // of those that may run
  uint64_t unsent_ = 0;
};

}  // namespace
}  // namespace edgewise::bench

int main(int argc, char** argv) {
  edgewise::bench::Options options;
  edgewise::FlagSet flags("flood --server IP:PORT --model NAME --input FILE.jsonl [flags]",
                          "An open loop of Predict calls from one thread.");
  flags.Add("server", "IP:PORT", "an IPv4 address", &options.server);
  flags.Add("model", "NAME", "the model to ask", &options.model);
  flags.Add("input", "FILE.jsonl", "inputs, one a line", &options.input);
  flags.Add("rate", "R", "calls a second", &options.rate);
  flags.Add("duration", "SECONDS", "of the load", &options.duration);
  flags.Add("timeout", "SECONDS", "of a call", &options.timeout);
  flags.Add("concurrency", "N", "most calls at a time", &options.concurrency, {1});
  flags.Add("json", "FILE", "gets the summary", &options.json);
  flags.Add("calls", "FILE", "gets every call as a line of JSON", &options.calls);
  edgewise::bench::ParseOrExit(flags, argc, argv);
  edgewise::bench::Flood flood(options);
  flood.Run();
  flood.Write();
  return 0;
}
