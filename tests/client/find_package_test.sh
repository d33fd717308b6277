#!/bin/sh
# Installs the client from a build folder to a temporary prefix, by the command of docs/cli.md, builds a project that finds it there
# and holds the C++ of that document as it stands, and has that ask the built server.
# Usage: find_package_test.sh BUILD_DIR [CMAKE]
set -eu
build=${1:?usage: find_package_test.sh BUILD_DIR [CMAKE]}
cmake=${2:-cmake}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT

fail() { echo "$*" >&2; exit 1; }

grep -q 'cmake --install build --component client' "$root/docs/cli.md" || fail "docs/cli.md installs the client in another way"
"$cmake" --install "$build" --prefix "$work/prefix" --component client
# The package must not lean on the folders that it was built in.
if grep -rn -F -e "$build" "$work/prefix/lib/cmake/edgewise"; then fail "the installed package names its build folder"; fi

cp -r "$here/find_package" "$work/project"
awk '/^```/ { on = $0 == "```cpp"; next } on' "$root/docs/cli.md" >"$work/document.cc"
grep -q 'Client::Create({.address = "127.0.0.1:8001"})' "$work/document.cc" || fail "docs/cli.md has no C++ that makes a client"
grep '^#include' "$work/document.cc" >"$work/project/readme_includes.h"
grep -v '^#include' "$work/document.cc" | sed 's/"127.0.0.1:8001"/address/' >"$work/project/readme_statements.inc"
launcher=$(command -v ccache || true)
"$cmake" -G Ninja -S "$work/project" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher"
"$cmake" --build "$work/build"

"$build/bin/edgewise-server" --model_repository="$root/examples/models" --listen=127.0.0.1:0 --metrics_listen= \
  2>"$work/log" &
server=$!
tries=0 port=
until [ -n "$port" ] && "$build/bin/edgewise" health --server="127.0.0.1:$port" >"$work/health" 2>&1; do
  tries=$((tries + 1))
  [ "$tries" -lt 600 ] || fail "the server does not serve: $(cat "$work/log" "$work/health")"
  sleep 0.1
  port=$(sed -nE 's/.*"event":"serving".*"port":([0-9]+).*/\1/p' "$work/log")
done
"$work/build/stranger" "127.0.0.1:$port"
