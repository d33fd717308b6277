// A backend that draws all heads by events, wherever that is possible: for suites whose models are so small that the
// rule would ask every pair.
#ifndef EDGEWISE_TESTS_MODEL_EVENTS_BACKEND_H_
#define EDGEWISE_TESTS_MODEL_EVENTS_BACKEND_H_

#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "tests/model/deferred_backend.h"

namespace edgewise::testing {

class EventsBackend final : public DeferredBackend {
 public:
  using DeferredBackend::DeferredBackend;

  absl::Status Attend(const AttentionInputs& inputs, std::span<const AttentionProblem> problems,
                      std::span<EdgeCap> caps, Matrix out) override {
    std::vector<AttentionProblem> by_events(problems.begin(), problems.end());
    for (AttentionProblem& problem : by_events) {
      if (auto* const drawn = std::get_if<DrawnRows>(&problem.pattern)) drawn->way = DrawWay::kEvents;
    }
    return DeferredBackend::Attend(inputs, by_events, caps, out);
  }
};

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_EVENTS_BACKEND_H_
