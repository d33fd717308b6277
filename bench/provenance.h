// The origin of a benchmark's numbers: date, machine and build.
#ifndef EDGEWISE_BENCH_PROVENANCE_H_
#define EDGEWISE_BENCH_PROVENANCE_H_

#include <string>

namespace edgewise::bench {

// Members of a JSON object, without braces: "date" (UTC), "machine" (processor and cores) and "command".
std::string Provenance(int argc, char** argv);

}  // namespace edgewise::bench

#endif  // EDGEWISE_BENCH_PROVENANCE_H_
