#include "server/http/page.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace edgewise::server {
namespace {

// Scripts, styles and calls of this server alone, none of them in the text of the page; no frames around it.
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// RFC 9110, 13.1.2.
bool Matches(std::string_view if_none_match, std::string_view tag) {
  for (absl::string_view one : absl::StrSplit(absl::string_view(if_none_match.data(), if_none_match.size()), ',')) {
    one = absl::StripAsciiWhitespace(one);
    absl::ConsumePrefix(&one, "W/");
    if (one == "*" || one == absl::string_view(tag.data(), tag.size())) return true;
  }
  return false;
}

void Serve(const PageFile& file, Exchange& exchange) {
  HttpAnswer answer{.type = file.type,
                    .cache = "no-cache",  // a browser asks each time whether its copy is the one of this server
                    .fields = {{"ETag", file.tag},
                               {"Content-Security-Policy", kPolicy},
                               {"Referrer-Policy", "no-referrer"},
                               {"Cross-Origin-Opener-Policy", "same-origin"}}};
  if (Matches(exchange.request.if_none_match, file.tag)) {
    answer.code = 304;
    answer.type = "";
  } else {
    answer.body = file.bytes;
  }
  exchange.Answer(std::move(answer));
}

}  // namespace

void AddPageRoutes(Routes& routes) {
  for (const auto& [path, type] : {std::pair("/", R"("text/html")"), std::pair("/page/{}", R"("*/*")")}) {
    routes.Add({.method = "GET",
                .path = path,
                .error = PlainError,
                .open = true,
                .quiet = true,
                .answer = type,
                .serve = [](const std::shared_ptr<Exchange>& exchange) {
                  for (const PageFile& file : PageFiles()) {
                    if (file.path == exchange->request.path) return Serve(file, *exchange);
                  }
                  exchange->Refuse({404, absl::NotFoundError("the page has no such file")});
                }});
  }
}

}  // namespace edgewise::server
