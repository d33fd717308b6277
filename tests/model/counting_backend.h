// A backend that counts what is allocated and reserved.
#ifndef EDGEWISE_TESTS_MODEL_COUNTING_BACKEND_H_
#define EDGEWISE_TESTS_MODEL_COUNTING_BACKEND_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "tests/model/deferred_backend.h"

namespace edgewise::testing {

class CountingBackend : public DeferredBackend {
 public:
  using DeferredBackend::DeferredBackend;
  absl::StatusOr<Buffer> Allocate(int64_t floats) override {
    absl::StatusOr<Buffer> made = DeferredBackend::Allocate(floats);
    if (!made.ok()) return made;
    live_ += floats;
    most_ = std::max(most_, live_);
    auto kept = std::make_shared<Buffer>(*std::move(made));
    return Buffer(kept->data(), floats, [this, kept](float*) { live_ -= kept->size(); });
  }
  absl::Status Reserve(int64_t pass_floats, int64_t generation_floats) override {
    pass_floats_ = std::max(pass_floats_, pass_floats);
    generation_floats_ = std::max(generation_floats_, generation_floats);
    return absl::OkStatus();
  }

  // Floats: allocated now, the most at a time since the last call of TakeMost, and reserved.
  int64_t live() const { return live_; }
  int64_t TakeMost() { return std::exchange(most_, live_); }
  int64_t pass_floats() const { return pass_floats_; }
  int64_t generation_floats() const { return generation_floats_; }

 private:
  int64_t live_ = 0, most_ = 0, pass_floats_ = 0, generation_floats_ = 0;
};

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_COUNTING_BACKEND_H_
