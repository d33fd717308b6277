#!/usr/bin/env bash
# Tests and times Edgewise on the GPU of this machine: unpacks contents.tar.xz of this folder, which `./dev gpu-bundle`
# made, and runs what is in it; nothing named: all but products and figures.
#
#     bash run.sh [selfcheck] [products] [tests] [models] [server] [sanitizer] [bench] [figures]
#
# Unpacked once for each archive, into $TMPDIR or /tmp, named by the archive's checksum; one that nothing used for a day
# goes when the next comes. steps.sh says what is done, what may be set and what the exit codes mean; 3: nothing could be
# unpacked.
set -euo pipefail

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
archive=$folder/contents.tar.xz
temporary=${TMPDIR:-/tmp}

die() { printf 'run.sh: %s\n' "$*" >&2; exit 3; }
manifest() { sed -n "s/^$1 //p" "$folder/MANIFEST"; }

[[ -f $archive && -f $folder/MANIFEST ]] || die "$folder has no contents.tar.xz and MANIFEST; ./dev gpu-bundle makes both"
sum=$(sha256sum <"$archive" | cut -d' ' -f1)
[[ $sum == "$(manifest sha256)" ]] || die "$archive is not the one that MANIFEST names; copy the whole folder again"
unpacked=$temporary/edgewise-gpu-$UID-${sum:0:16}

unpack() { # FOLDER
  if command -v xz >/dev/null; then
    tar -C "$1" -xJf "$archive"
  elif python3 -c 'import lzma' 2>/dev/null; then
    python3 -m tarfile -e "$archive" "$1"
  else
    die "needs xz, or a python3 with lzma, to unpack $archive"
  fi
}

if [[ ! -d $unpacked ]]; then
  [[ -d $temporary && -w $temporary ]] || die "$temporary cannot be written to; TMPDIR names another folder"
  find "$temporary" -maxdepth 1 -type d -name "edgewise-gpu-$UID-*" -mtime +0 -exec rm -rf {} +
  megabytes=$(manifest megabytes)
  free=$(df -Pm "$temporary" | awk 'NR == 2 { print $4 }')
  ((free > megabytes)) || die "$temporary has $free MB left, of $megabytes that are needed; TMPDIR names another folder"
  part=$(mktemp -d "$unpacked.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  unpack "$part" || die "$archive cannot be unpacked into $temporary"
  # Whole or not at all; another run may have been faster.
  mv -T "$part" "$unpacked" 2>/dev/null || [[ -d $unpacked ]] || die "cannot make $unpacked"
  rm -rf "$part"
  trap - EXIT
  echo "unpacked into $unpacked"
fi
[[ -O $unpacked && ! -L $unpacked ]] || die "$unpacked is somebody else's; TMPDIR names another folder"
touch "$unpacked" # for the day
[[ -x $unpacked/steps.sh ]] || die "programs cannot run from $temporary; TMPDIR names another folder"
exec "$unpacked/steps.sh" "$@"
