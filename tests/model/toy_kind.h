// A kind that only tests have: every query attends to every n-th valid token of its text, from the first on. It is made
// as docs/architecture.md, "Adding things", says, and nothing in the product knows it.
#ifndef EDGEWISE_TESTS_MODEL_TOY_KIND_H_
#define EDGEWISE_TESTS_MODEL_TOY_KIND_H_

#include "model/config/config.h"
#include "model/kinds/kind.h"

namespace edgewise::testing {

// {"kind": "every_nth", "stride": n}
extern const AttentionKind kEveryNthKind;

// Kinds() and kEveryNthKind.
AttentionKinds KindsWithToy();

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_TOY_KIND_H_
