// The commands of `edgewise`. Each parses its arguments (without the command's name), writes answers to `out` and
// everything else to `err`, and returns the exit status: 0 done, 1 the server (or a call) failed, 2 wrong usage.
#ifndef EDGEWISE_CLIENT_CLI_COMMANDS_H_
#define EDGEWISE_CLIENT_CLI_COMMANDS_H_

#include <iosfwd>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace edgewise {
class FlagSet;
}

namespace edgewise::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitServer = 1;
inline constexpr int kExitUsage = 2;

using Arguments = std::span<const std::string>;

int RunPredict(Arguments arguments, std::ostream& out, std::ostream& err);
int RunGenerate(Arguments arguments, std::ostream& out, std::ostream& err);
int RunScore(Arguments arguments, std::ostream& out, std::ostream& err);
int RunEvaluate(Arguments arguments, std::ostream& out, std::ostream& err);
int RunModels(Arguments arguments, std::ostream& out, std::ostream& err);
int RunHealth(Arguments arguments, std::ostream& out, std::ostream& err);
int RunBench(Arguments arguments, std::ostream& out, std::ostream& err);
// Becomes the program edgewise-selfcheck, which must lie beside this one; returns only where that fails.
int RunSelfcheck(Arguments arguments, std::ostream& out, std::ostream& err);

// Dispatches on the first argument; also help and version.
int RunCommand(Arguments arguments, std::ostream& out, std::ostream& err);

struct ConnectionFlags;
// "edgewise: CODE: message", with a hint where the server cannot be reached. Returns kExitServer.
int ReportServerError(const absl::Status& status, const ConnectionFlags& connection, std::ostream& err);
// "edgewise COMMAND: message" and where to find help. Returns kExitUsage.
int ReportUsageError(const absl::Status& status, const std::string& command, std::ostream& err);

// Parses the arguments, or prints help on --help. False: the command ends with `exit_code`.
bool ParseOrHelp(FlagSet& flags, const std::string& command, Arguments arguments, std::ostream& out, std::ostream& err,
                 int& exit_code);

}  // namespace edgewise::cli

#endif  // EDGEWISE_CLIENT_CLI_COMMANDS_H_
