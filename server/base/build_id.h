// Which program this is.
#ifndef EDGEWISE_SERVER_BASE_BUILD_ID_H_
#define EDGEWISE_SERVER_BASE_BUILD_ID_H_

#include <string>

namespace edgewise::server {

// The linker's build ids (GNU notes), in hex: the executable's; and, after a "+", that of the library of CUDA, where it
// is loaded when this is first called. Equal where two servers run the same program. Empty: it was linked without one.
// Any thread.
const std::string& BuildId();

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_BASE_BUILD_ID_H_
