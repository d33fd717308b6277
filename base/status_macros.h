// Early returns of errors.
#ifndef EDGEWISE_BASE_STATUS_MACROS_H_
#define EDGEWISE_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the status of `expression` from the enclosing function where it is not OK.
#define RETURN_IF_ERROR(expression)                                   \
  do {                                                                \
    if (absl::Status error = (expression); !error.ok()) return error; \
  } while (false)

// Assigns the value of `expression`, an absl::StatusOr, to `target`, or returns its status from the enclosing function.
#define ASSIGN_OR_RETURN(target, expression) ASSIGN_OR_RETURN_AS(STATUS_OR_NAME(__LINE__), target, expression)
#define STATUS_OR_NAME(line) STATUS_OR_NAME_AT(line)
#define STATUS_OR_NAME_AT(line) status_or_##line
#define ASSIGN_OR_RETURN_AS(name, target, expression) \
  auto name = (expression);                           \
  if (!name.ok()) return name.status();               \
  target = *std::move(name)

#endif  // EDGEWISE_BASE_STATUS_MACROS_H_
