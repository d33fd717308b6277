#include "kernels/cuda/device/cancel_flags.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"

namespace edgewise::cuda {

class CancelFlags::Flag : public CancelFlag {
 public:
  Flag(std::shared_ptr<CancelFlags> owner, int32_t* word) : owner_(std::move(owner)), word_(word) {}
  ~Flag() override {
    if (word_ != nullptr) owner_->Give(word_, told_);
  }

  void Cancel() override {
    CancelFlag::Cancel();
    if (word_ != nullptr && !told_.exchange(true)) owner_->Set(word_, 1);  // where it fails the device is lost
  }

  const int32_t* word() const { return word_; }

 private:
  const std::shared_ptr<CancelFlags> owner_;
  int32_t* const word_;  // null: none
  std::atomic<bool> told_ = false;
};

absl::StatusOr<std::shared_ptr<CancelFlags>> CancelFlags::Create(std::shared_ptr<Device> device, int32_t words) {
  std::shared_ptr<CancelFlags> flags(new CancelFlags(std::move(device)));
  if (absl::Status status = flags->Start(words); !status.ok()) return status;
  return flags;
}

absl::Status CancelFlags::Start(int32_t words) {
  absl::Status status = CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream of flags");
  if (!status.ok()) return status;
  void* values = nullptr;
  status = CudaStatus(cudaMallocHost(&values, 2 * sizeof(int32_t)), "pinned host memory of flags");
  if (!status.ok()) return status;
  values_ = static_cast<int32_t*>(values);
  values_[0] = 0;
  values_[1] = 1;
  const size_t bytes = words * sizeof(int32_t);
  absl::StatusOr<DeviceArray> block = DeviceArray::Create(*device_, static_cast<int64_t>(bytes));
  if (!block.ok()) return block.status();
  words_ = *std::move(block);
  status = CudaStatus(cudaMemsetAsync(words_.data(), 0, bytes, device_->stream()), "memory of flags");
  if (status.ok()) status = device_->Synchronize();
  if (!status.ok()) return status;
  const absl::MutexLock lock(&mutex_);
  free_.reserve(words);  // giving back allocates nothing
  cleared_.reserve(words);
  for (int32_t i = words; i-- > 0;) free_.push_back(words_.as<int32_t>() + i);
  return absl::OkStatus();
}

CancelFlags::~CancelFlags() {
  if (!device_->Use().ok()) return;
  if (stream_ != nullptr) {
    cudaStreamSynchronize(stream_);  // before the words and the values go
    cudaStreamDestroy(stream_);
  }
  if (values_ != nullptr) cudaFreeHost(values_);
}

std::unique_ptr<CancelFlag> CancelFlags::Make() { return std::make_unique<Flag>(shared_from_this(), Take()); }

const int32_t* CancelFlags::WordOf(const CancelFlag* flag) {
  const auto* of_device = dynamic_cast<const Flag*>(flag);  // of another backend, say, it is none
  return of_device == nullptr ? nullptr : of_device->word();
}

int32_t* CancelFlags::Take() {
  const absl::MutexLock lock(&mutex_);
  if (free_.empty() && !cleared_.empty() && device_->Use().ok() &&
      CudaStatus(cudaStreamSynchronize(stream_), "flags").ok()) {
    free_.swap(cleared_);
  }
  if (free_.empty()) return nullptr;
  int32_t* word = free_.back();
  free_.pop_back();
  return word;
}

void CancelFlags::Give(int32_t* word, bool raised) {
  // Behind the copy of 1. A word that cannot be cleared is not used again.
  if (raised && !Set(word, 0)) return;
  const absl::MutexLock lock(&mutex_);
  (raised ? cleared_ : free_).push_back(word);
}

// A copy and not a fill: that would be a kernel, which waits for a multiprocessor like those that are to see the word.
bool CancelFlags::Set(int32_t* word, int32_t value) {
  return device_->Use().ok() &&
         CudaStatus(cudaMemcpyAsync(word, values_ + value, sizeof(*word), cudaMemcpyHostToDevice, stream_), "flag")
             .ok();
}

}  // namespace edgewise::cuda
