// The hint that follows a name nobody knows: fields of config.json, tensors, models, flags.
#ifndef EDGEWISE_BASE_DID_YOU_MEAN_H_
#define EDGEWISE_BASE_DID_YOU_MEAN_H_

#include <set>
#include <string>

namespace edgewise {

// "; did you mean NAME?" with the entry of `known` nearest to `name` by edit distance, `prefix` before it, or "" when
// none is near.
std::string DidYouMean(const std::string& name, const std::set<std::string>& known, const std::string& prefix = "");

}  // namespace edgewise

#endif  // EDGEWISE_BASE_DID_YOU_MEAN_H_
