#!/usr/bin/env bash
# collect-runtime.sh ROOT PROGRAM...: makes ROOT a root file system that holds the programs (stripped, in
# /usr/local/bin), the shared libraries they load, a font for plots, and the user 65532; no shell, no package manager.
# The packages these files come from are recorded in /var/lib/dpkg/status.d, where scanners look, with their licences
# in /usr/share/doc. Runs in the build stage of the Dockerfile; ROOT must not exist.
set -euo pipefail
root=$1
shift
mkdir -p "$root"/{etc,tmp,usr/bin,usr/lib,usr/local/bin,usr/share/doc,var/lib/dpkg/status.d}
chmod 1777 "$root/tmp"
for link in bin lib lib32 lib64; do # as Debian merges them
  if [[ -L /$link ]]; then
    mkdir -p "$root/usr/$link"
    ln -s "usr/$link" "$root/$link"
  fi
done

packages=()
# The package that owns a file, whose name dpkg may know with or without /usr.
remember_package() {
  local file=$1 owner
  owner=$(dpkg-query -S "$file" 2>/dev/null || dpkg-query -S "${file#/usr}" 2>/dev/null) || {
    echo "collect-runtime: no package owns $file" >&2
    exit 1
  }
  packages+=("${owner%%:*}")
}

install -s -m 755 "$@" "$root/usr/local/bin/"
while IFS= read -r library; do
  target=/usr/${library#/}
  install -D -m 755 "$(realpath "$library")" "$root/${target#/usr/usr}"
  remember_package "$(realpath "$library")"
done < <(ldd "$@" | grep -oE '/[^ ]+\.so[^ ]*' | sort -u)

# Plots draw text with cairo, which asks fontconfig for a font. Its cache is made here, since the root is read-only later;
# it is valid while the times of the folders stay, which archives keep to the second.
command -v fc-cache >/dev/null || apt-get install -y -qq --no-install-recommends fontconfig >/dev/null
cp -r --parents /usr/share/fonts/truetype/dejavu "$root"
mkdir -p "$root"/{etc/fonts,var/cache/fontconfig}
cat >"$root/etc/fonts/fonts.conf" <<'XML'
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <cachedir>/var/cache/fontconfig</cachedir>
</fontconfig>
XML
find "$root/usr/share/fonts" -exec touch -d 2020-01-01T00:00:00Z {} +
fc-cache --sysroot="$root" --system-only
remember_package /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf

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
rm -r "$root/var/cache/ldconfig"
