#!/usr/bin/env bash
# pack.sh CONTENTS FOLDER LIMIT_MB: makes FOLDER, which is what travels, of the folder CONTENTS: the archive
# contents.tar.xz, MANIFEST and run.sh. CONTENTS has steps.sh and a MANIFEST of its own.
set -euo pipefail

usage="usage: pack.sh CONTENTS FOLDER LIMIT_MB"
contents=${1:?$usage} folder=${2:?$usage} limit_mb=${3:?$usage}

die() { printf 'gpu-bundle: %s\n' "$*" >&2; exit 1; }

# Only what this script made is deleted.
if [[ -e $folder ]]; then
  [[ -f $folder/MANIFEST ]] || die "$folder is there and is no bundle"
  rm -r "$folder"
fi
mkdir -p "$folder"
tar -C "$contents" --sort=name --owner=0 --group=0 --numeric-owner -c . | xz -9 >"$folder/contents.tar.xz"
{
  cat "$contents/MANIFEST"
  printf 'sha256 %s\n' "$(sha256sum <"$folder/contents.tar.xz" | cut -d' ' -f1)"
  printf 'megabytes %s\n' "$(du -sm "$contents" | cut -f1)" # unpacked
} >"$folder/MANIFEST"
install -m 755 "$(dirname "${BASH_SOURCE[0]}")/run.sh" "$folder/run.sh"

bytes=$(du -sb "$folder" | cut -f1)
printf '%s: %d MB, unpacked %s MB\n' "$folder" $(((bytes + 999999) / 1000000)) "$(du -sm "$contents" | cut -f1)"
((bytes <= limit_mb * 1000000)) || die "$folder is larger than the $limit_mb MB it may have"
