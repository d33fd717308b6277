// Compression of what the HTTP port answers.
#ifndef EDGEWISE_SERVER_OBSERVE_GZIP_H_
#define EDGEWISE_SERVER_OBSERVE_GZIP_H_

#include <string>

namespace edgewise::server {

// RFC 1952, at the level that is fastest: exposition text shrinks to a tenth. "": there is no memory.
std::string Gzip(const std::string& text);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_OBSERVE_GZIP_H_
