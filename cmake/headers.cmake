# Headers of libraries that most sources read, parsed once: most of what a source takes to compile is theirs. A source still
# includes all that it uses. Clang's checks (tools/lint.py), of the files that see a mutex or have changed, know no
# precompiled headers; -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds all without.
find_package(nlohmann_json CONFIG REQUIRED)
set(EDGEWISE_COMMON_HEADERS <algorithm> <array> <atomic> <chrono> <cmath> <deque> <fstream> <functional> <map> <memory>
  <memory_resource> <optional> <set> <span> <sstream> <string> <thread> <utility> <variant> <vector>
  <absl/container/flat_hash_map.h> <absl/status/status.h> <absl/status/statusor.h> <absl/strings/ascii.h>
  <absl/strings/match.h> <absl/strings/str_cat.h> <absl/strings/str_format.h> <absl/strings/str_join.h>
  <absl/strings/str_split.h> <absl/synchronization/mutex.h> <absl/time/time.h> <nlohmann/json.hpp>)

# edgewise_headers: for what knows no RPCs. edgewise_rpc_headers: with those of the messages and of gRPC.
add_library(edgewise_headers OBJECT cmake/headers.cc)
target_link_libraries(edgewise_headers PRIVATE edgewise_flags absl::str_format absl::synchronization
  nlohmann_json::nlohmann_json)
target_precompile_headers(edgewise_headers PRIVATE ${EDGEWISE_COMMON_HEADERS})
add_library(edgewise_rpc_headers OBJECT cmake/headers.cc)
target_link_libraries(edgewise_rpc_headers PRIVATE edgewise_flags edgewise_proto nlohmann_json::nlohmann_json)
target_precompile_headers(edgewise_rpc_headers PRIVATE ${EDGEWISE_COMMON_HEADERS} <edgewise/v1/inference.pb.h>
  <grpcpp/grpcpp.h>)
