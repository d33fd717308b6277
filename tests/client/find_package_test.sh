#!/bin/sh
# Installs the client from a build folder to a temporary prefix, and builds and runs a project that finds it there.
# Usage: find_package_test.sh BUILD_DIR [CMAKE]
set -eu
build=${1:?usage: find_package_test.sh BUILD_DIR [CMAKE]}
cmake=${2:-cmake}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/prefix" --component client
# The package must not lean on the folders that it was built in.
if grep -rn -F -e "$build" "$work/prefix/lib/cmake/edgewise"; then
  echo "the installed package names its build folder" >&2
  exit 1
fi
launcher=$(command -v ccache || true)
"$cmake" -G Ninja -S "$here/find_package" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher"
"$cmake" --build "$work/build"
"$work/build/stranger"
