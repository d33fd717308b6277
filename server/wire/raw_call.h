// Calls on gRPC as messages of bytes both ways, from their headers on.
//
// This is gRPC's asynchronous API, with the interface of its callback API. The latter hands every event from the thread
// that polls to another: six changes of thread a call, which take longer than what there is to do. Here the thread that
// polls a queue (CallThreads) does it.
#ifndef EDGEWISE_SERVER_WIRE_RAW_CALL_H_
#define EDGEWISE_SERVER_WIRE_RAW_CALL_H_

#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "server/guard/auth.h"
#include "server/guard/listener.h"
#include "server/observe/call_log.h"
#include "server/request/call.h"

namespace edgewise::server {

class RawCall;

// The events of a call, which a method implements. The On* functions run on the thread of the call, one after the
// other; they never block. It is deleted when the call has finished, nothing runs any more, and nobody holds it.
class RawReactor {
 public:
  explicit RawReactor(RawCall& call);
  virtual ~RawReactor() = default;
  RawReactor(const RawReactor&) = delete;
  RawReactor& operator=(const RawReactor&) = delete;

  // Any thread. One read and one write at a time; what they point to must live until they are done. Finish or
  // StartWriteAndFinish is called once; then no write is started. `this` may be deleted by their return unless a
  // callback is running or it is held.
  void StartRead(grpc::ByteBuffer* message);
  void StartWrite(const grpc::ByteBuffer* message);
  void StartWriteAndFinish(const grpc::ByteBuffer* message, const grpc::Status& status);
  void Finish(const grpc::Status& status);

  // The call ends with this status: counts and logs it. Once, before Finish or StartWriteAndFinish.
  void Record(const absl::Status& status);

  // After a read. INTERNAL: its message says that it is compressed, in a call that names no encoding that is served
  // (gRPC itself refuses those that it knows); gRPC would hand it over as it is.
  absl::Status CheckRead() const;

  // The call has come. Before any other event.
  virtual void OnBegun() {}
  // A read or write is over; not ok: there is no message, or nobody reads what was written.
  virtual void OnReadDone(bool /*ok*/) {}
  virtual void OnWriteDone(bool /*ok*/) {}
  // The client has cancelled the call or is gone, or its deadline has passed.
  virtual void OnCancel() {}

 protected:
  // Work on another thread, which began within a callback, goes on: `this` lives until Release.
  void Hold();
  void Release();

  // The record of the call, with all that is known before its method begins; the method sets the rest.
  Call& record() { return record_; }

  grpc::ServerContext* const call_;

 private:
  RawCall& raw_;
  Call record_;
};

// How calls of a method are waited for, and what is done with them.
struct RawMethod {
  const char* path = "_other";  // a literal, for the log
  std::function<void(RawCall& call)> request;
  std::function<std::unique_ptr<RawReactor>(RawCall& call)> make;  // on the thread of the call
};

// Methods whose calls are RawReactors. It must outlive its server.
class RawService : public grpc::Service {
 public:
  const std::vector<std::unique_ptr<RawMethod>>& methods() const { return methods_; }

 protected:
  // `path` must be a literal. Before the server starts.
  void Add(const char* path, std::function<std::unique_ptr<RawReactor>(RawCall& call)> make);

 private:
  std::vector<std::unique_ptr<RawMethod>> methods_;
};

// A call that comes or has come. Deletes itself.
class RawCall {
  friend class CallThreads;
  friend class RawReactor;
  friend class RawService;
  enum class Operation { kBegin, kRead, kWrite, kFinish, kEnd };
  // gRPC gives the pointer back when the operation is over.
  struct Event {
    RawCall& call;
    Operation operation;
  };

  RawCall(const RawMethod& method, grpc::ServerCompletionQueue& queue, const Gate& gate, CallLog& log,
          Listener* listener);
  ~RawCall();
  void OnEvent(Operation operation, bool ok);
  // The call has come.
  std::unique_ptr<RawReactor> MakeReactor();
  void Complete();

  const RawMethod& method_;
  grpc::ServerCompletionQueue& queue_;
  const Gate& gate_;
  CallLog& log_;
  Principal principal_;       // once it has come
  Listener* const listener_;  // may be null
  uint64_t connection_ = 0;   // that it keeps busy, from its first message until it has ended
  grpc::GenericServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_{&context_};
  Event begun_{*this, Operation::kBegin}, read_{*this, Operation::kRead}, written_{*this, Operation::kWrite};
  Event finished_{*this, Operation::kFinish}, ended_{*this, Operation::kEnd};
  std::atomic<int> running_ = 2;  // operations: every call finishes, and its end is told
  std::unique_ptr<RawReactor> reactor_;
};

// The threads that poll gRPC and run the callbacks of reactors, each with a queue and its calls.
class CallThreads {
 public:
  // Why a method is not served: never empty.
  using WhyNot = std::string (*)(const std::string& method);
  // As many as the cores need: one for four, up to four. `gate` counts the calls that begin, and says whose they are;
  // `log` has those that it refuses; `listener`, which may be null, learns which connections are busy. All must outlive
  // this.
  CallThreads(grpc::ServerBuilder& builder, const Gate& gate, CallLog& log, Listener* listener = nullptr,
              WhyNot why_not = nullptr);
  ~CallThreads() { Stop(); }
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;

  // Serves from now on. After the server has started.
  void Start(const std::vector<const RawService*>& services);
  // After the server's Shutdown, which waits for all calls.
  void Stop();

 private:
  const Gate& gate_;
  CallLog& log_;
  Listener* const listener_;
  grpc::AsyncGenericService others_;  // methods that are not served
  RawMethod unimplemented_;           // they are answered so
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::vector<std::thread> threads_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_WIRE_RAW_CALL_H_
