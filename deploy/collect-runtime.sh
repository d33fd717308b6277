#!/usr/bin/env bash
# collect-runtime.sh ROOT FILE...: makes ROOT a root file system that holds the programs among the files (stripped, in
# /usr/local/bin), the modules *.so (stripped, in /usr/local/lib/edgewise), the shared libraries they load, and the
# user 65532; no shell, no package manager. Where scanners look, it is recorded what these libraries come
# from: Debian's packages in /var/lib/dpkg/status.d, wheels of PyPI as *.dist-info in /usr/share/doc, licences there too.
# A library of a wheel lies beside the modules, which look there first. Runs in the build stage of the Dockerfile; ROOT
# must not exist.
set -euo pipefail
root=$1
shift
programs=() modules=()
for file in "$@"; do
  if [[ $file == *.so ]]; then modules+=("$file"); else programs+=("$file"); fi
done
mkdir -p "$root"/{etc,tmp,usr/bin,usr/lib,usr/local/bin,usr/share/doc,var/lib/dpkg/status.d}
chmod 1777 "$root/tmp"
for link in bin lib lib32 lib64; do # as Debian merges them
  if [[ -L /$link ]]; then
    mkdir -p "$root/usr/$link"
    ln -s "usr/$link" "$root/$link"
  fi
done

die() { echo "collect-runtime: $*" >&2; exit 1; }

packages=()
# The package that owns a file, whose name dpkg may know with or without /usr.
remember_package() {
  local file=$1 owner
  owner=$(dpkg-query -S "$file" 2>/dev/null || dpkg-query -S "${file#/usr}" 2>/dev/null) || return 1
  packages+=("${owner%%:*}")
}

# The *.dist-info folder of the wheel that a file came with, in one of the folders above the file.
wheel_of() {
  local file=$1 site=$1 record
  while site=$(dirname "$site") && [[ $site != / ]]; do
    record=$(grep -lsF "${file#"$site/"}," "$site"/*.dist-info/RECORD) || continue
    dirname "$record"
    return
  done
  return 1
}

# Its description and its licences.
remember_wheel() {
  local wheel=$1 to=$root/usr/share/doc/${1##*/} licences
  mapfile -t licences < <(find "$wheel" -type f -iname '*licen[cs]e*')
  ((${#licences[@]})) || die "no licence in $wheel"
  install -D -m 644 -t "$to" "$wheel/METADATA" "${licences[@]}"
}

install -s -m 755 "${programs[@]}" "$root/usr/local/bin/"
((${#modules[@]} == 0)) || install -D -s -m 644 -t "$root/usr/local/lib/edgewise" "${modules[@]}"
loaded=$(ldd "$@")
! grep 'not found' <<<"$loaded" >&2 || die "these libraries are missing"
while IFS= read -r library; do
  file=$(realpath "$library")
  if remember_package "$file"; then
    target=/usr/${library#/}
    install -D -m 755 "$file" "$root/${target#/usr/usr}"
  else
    wheel=$(wheel_of "$file") || die "neither a package nor a wheel owns $file"
    remember_wheel "$wheel"
    install -D -m 644 "$file" "$root/usr/local/lib/edgewise/${library##*/}"
  fi
done < <(sed -nE 's/^\t(.* => )?(\/[^ ]+) .*/\2/p' <<<"$loaded" | sort -u)

echo 'edgewise:x:65532:65532:edgewise:/nonexistent:/usr/sbin/nologin' >"$root/etc/passwd"
echo 'edgewise:x:65532:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
cp /etc/os-release /etc/debian_version "$root/etc/"

while IFS= read -r package; do
  dpkg-query -s "$package" >"$root/var/lib/dpkg/status.d/$package"
  licence=/usr/share/doc/$package/copyright
  # The libraries of GCC share one file, through a link that slim images leave out.
  [[ -f $licence ]] || licence=/usr/share/doc/$(dpkg-query -W -f '${source:Package}' "$package")-base/copyright
  install -D -m 644 "$licence" "$root/usr/share/doc/$package/copyright"
done < <(printf '%s\n' "${packages[@]}" | sort -u)

echo /usr/local/lib >"$root/etc/ld.so.conf"
ldconfig -r "$root"
rm -rf "$root/var/cache"
