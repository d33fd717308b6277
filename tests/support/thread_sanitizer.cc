// For builds with ThreadSanitizer: tells it what Debian's libraries do, which are not compiled for it. Linked into
// every test. absl::Mutex, CondVar and Notification are taken over here, for gRPC too: each method tells the sanitizer
// and then calls the method of the library. Without that it would see none of these locks and call everything behind
// them a race.
#include <absl/base/options.h>
#include <absl/strings/str_cat.h>
#include <absl/synchronization/mutex.h>
#include <absl/synchronization/notification.h>
#include <absl/time/time.h>
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <string>

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);

// gRPC hands its objects from thread to thread by atomic operations of its own, which are not seen.
const char* __tsan_default_suppressions() {
  return "race:^grpc::\n"
         "race:^grpc_core::\n"
         "called_from_lib:libgrpc.so\n"
         "called_from_lib:libgrpc++.so\n"
         "called_from_lib:libgpr.so\n"
         "called_from_lib:libprotobuf.so\n";
}
}

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace {

#define EDGEWISE_TEXT_OF(name) #name
#define EDGEWISE_EXPANDED(name) EDGEWISE_TEXT_OF(name)

// The library's function, by the parts of its mangled name before and behind absl's namespace.
template <typename Function>
Function* Real(const char* name, const char* before = "_ZN") {
  const std::string space = EDGEWISE_EXPANDED(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  void* function = dlsym(RTLD_NEXT, absl::StrCat(before, "4absl", space.size(), space, name).c_str());
  if (function == nullptr) __builtin_trap();
  return reinterpret_cast<Function*>(function);
}

// Whoever unlocks evaluates the conditions that others wait for: reads under a lock that it has just given back.
class Conditions {
 public:
  Conditions() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~Conditions() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

// Locks the sanitizer's picture of the mutex while it lives.
template <typename Call>
void Locking(void* mutex, unsigned flags, Call call) {
  __tsan_mutex_pre_lock(mutex, flags);
  const Conditions conditions;
  call();
  __tsan_mutex_post_lock(mutex, flags, 0);
}

template <typename Call>
void Unlocking(void* mutex, unsigned flags, Call call) {
  __tsan_mutex_pre_unlock(mutex, flags);
  {
    const Conditions conditions;
    call();
  }
  __tsan_mutex_post_unlock(mutex, flags);
}

template <typename Call>
bool Trying(void* mutex, unsigned flags, Call call) {
  flags |= __tsan_mutex_try_lock;
  __tsan_mutex_pre_lock(mutex, flags);
  const bool locked = call();
  __tsan_mutex_post_lock(mutex, locked ? flags : flags | __tsan_mutex_try_lock_failed, 0);
  return locked;
}

// The mutex is free while the call waits.
template <typename Call>
auto Waiting(void* mutex, Call call) {
  __tsan_mutex_pre_unlock(mutex, 0);
  __tsan_mutex_post_unlock(mutex, 0);
  struct Again {
    void* mutex;
    Conditions conditions;
    ~Again() {
      __tsan_mutex_pre_lock(mutex, 0);
      __tsan_mutex_post_lock(mutex, 0, 0);
    }
  } again{mutex, {}};
  return call();
}

}  // namespace

void Mutex::Lock() {
  static const auto real = Real<void(Mutex*)>("5Mutex4LockEv");
  Locking(this, 0, [&] { real(this); });
}

void Mutex::Unlock() {
  static const auto real = Real<void(Mutex*)>("5Mutex6UnlockEv");
  Unlocking(this, 0, [&] { real(this); });
}

bool Mutex::TryLock() {
  static const auto real = Real<bool(Mutex*)>("5Mutex7TryLockEv");
  return Trying(this, 0, [&] { return real(this); });
}

void Mutex::ReaderLock() {
  static const auto real = Real<void(Mutex*)>("5Mutex10ReaderLockEv");
  Locking(this, __tsan_mutex_read_lock, [&] { real(this); });
}

void Mutex::ReaderUnlock() {
  static const auto real = Real<void(Mutex*)>("5Mutex12ReaderUnlockEv");
  Unlocking(this, __tsan_mutex_read_lock, [&] { real(this); });
}

void Mutex::LockWhen(const Condition& condition) {
  static const auto real = Real<void(Mutex*, const Condition&)>("5Mutex8LockWhenERKNS0_9ConditionE");
  Locking(this, 0, [&] { real(this, condition); });
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  static const auto real =
      Real<bool(Mutex*, const Condition&, Duration)>("5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  bool holds = false;
  Locking(this, 0, [&] { holds = real(this, condition, timeout); });
  return holds;
}

void Mutex::Await(const Condition& condition) {
  static const auto real = Real<void(Mutex*, const Condition&)>("5Mutex5AwaitERKNS0_9ConditionE");
  Waiting(this, [&] { real(this, condition); });
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static const auto real =
      Real<bool(Mutex*, const Condition&, Duration)>("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  return Waiting(this, [&] { return real(this, condition, timeout); });
}

void CondVar::Wait(Mutex* mutex) {
  static const auto real = Real<void(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  Waiting(mutex, [&] { real(this, mutex); });
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static const auto real =
      Real<bool(CondVar*, Mutex*, Duration)>("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  return Waiting(mutex, [&] { return real(this, mutex, timeout); });
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const auto real = Real<bool(CondVar*, Mutex*, Time)>("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  return Waiting(mutex, [&] { return real(this, mutex, deadline); });
}

void Notification::Notify() {
  static const auto real = Real<void(Notification*)>("12Notification6NotifyEv");
  __tsan_release(this);
  real(this);
}

void Notification::WaitForNotification() const {
  static const auto real = Real<void(const Notification*)>("12Notification19WaitForNotificationEv", "_ZNK");
  real(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

ABSL_NAMESPACE_END
}  // namespace absl
