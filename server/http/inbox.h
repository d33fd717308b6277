// The bytes of a connection that were read and are not used yet.
#ifndef EDGEWISE_SERVER_HTTP_INBOX_H_
#define EDGEWISE_SERVER_HTTP_INBOX_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace edgewise::server {

// A byte is moved at most once more, however small the parts are that are used. Takes no memory while it is empty, and
// else at most four times its bytes. One thread at a time.
class Inbox {
 public:
  // Until the next method that changes it.
  std::string_view view() const { return std::string_view(bytes_).substr(used_); }
  size_t size() const { return bytes_.size() - used_; }
  bool empty() const { return size() == 0; }
  size_t capacity() const { return bytes_.capacity(); }

  void Append(std::string_view bytes) { bytes_.append(bytes); }
  // Takes the first `size` bytes away.
  void Use(size_t size) {
    used_ += size;
    if (empty()) return Clear();
    if (2 * used_ < bytes_.size()) return;
    std::string(bytes_, used_).swap(bytes_);  // more are gone than are moved; erase would keep their memory
    used_ = 0;
  }
  void Clear() {
    bytes_ = std::string();
    used_ = 0;
  }

 private:
  std::string bytes_;
  size_t used_ = 0;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_INBOX_H_
