// The page at /, to try the server in a browser. Its files (server/http/page) are in the program and need no token; the
// calls that it makes are those of anybody.
#ifndef EDGEWISE_SERVER_HTTP_PAGE_H_
#define EDGEWISE_SERVER_HTTP_PAGE_H_

#include <span>
#include <string_view>

#include "server/http/routes.h"

namespace edgewise::server {

struct PageFile {
  const char* path;
  const char* type;
  const char* tag;  // its ETag
  std::string_view bytes;
};

// page/embed.cmake writes it.
std::span<const PageFile> PageFiles();

void AddPageRoutes(Routes& routes);

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_PAGE_H_
