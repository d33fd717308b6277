// A model that loads while a simulation goes on: the simulation runs its pieces of work on the device between turns.
#ifndef EDGEWISE_TESTS_SERVER_SIMULATOR_LOADING_H_
#define EDGEWISE_TESTS_SERVER_SIMULATOR_LOADING_H_

#include <functional>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "model/kinds/kind.h"
#include "model/load/load.h"

namespace edgewise::server {

// The loader has a thread of its own, since loading calls for the device from inside; but only one of the two threads
// runs at a time, so that a simulation remains one sequence of events.
class Loading {
 public:
  // `backend` must outlive this.
  Loading(const std::string& folder, Backend& backend)
      : thread_([this, folder, &backend] {
          to_loader_.acquire();
          loaded_ = LoadModel(folder, backend, Kinds(), [this](const std::function<absl::Status()>& piece) {
            piece_ = &piece;
            to_simulation_.release();
            to_loader_.acquire();
            return status_;
          });
          piece_ = nullptr;
          to_simulation_.release();
        }) {}
  ~Loading() {
    while (RunPiece()) {
    }
    thread_.join();
  }

  // Lets the loader go on to its next piece, and runs that. False: there is none, and the model is there or failed.
  bool RunPiece() {
    if (loaded_) return false;
    to_loader_.release();
    to_simulation_.acquire();
    if (piece_ == nullptr) return false;
    status_ = (*piece_)();
    return true;
  }
  // Once, after the last piece.
  absl::StatusOr<std::unique_ptr<Model>> Take() { return *std::move(loaded_); }

 private:
  std::binary_semaphore to_loader_{0}, to_simulation_{0};
  const std::function<absl::Status()>* piece_ = nullptr;
  absl::Status status_;  // of the piece
  std::optional<absl::StatusOr<std::unique_ptr<Model>>> loaded_;
  std::thread thread_;
};

}  // namespace edgewise::server

#endif  // EDGEWISE_TESTS_SERVER_SIMULATOR_LOADING_H_
