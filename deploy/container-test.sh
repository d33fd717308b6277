#!/usr/bin/env bash
# container-test.sh [cpu | cuda] [--keep]: builds that image of the Dockerfile and tries it, locked down as docs/deploy.md
# says. The image `cuda` is tried on the CPU, with no GPU; for it PyPI has to be reached too.
#
# Uses Docker where an engine answers; otherwise buildah, podman and runc, which need root and are installed from
# Debian when missing. Where debian:bookworm-slim cannot be pulled, a base image is made by debootstrap, from the
# archive that this machine's apt uses (about a minute), or from the unpacked Debian 12 in EDGEWISE_BASE_ROOT. pip reads
# /etc/pip.conf of this machine there.
# --keep leaves the image, and prints its name. EDGEWISE_JOBS: compile jobs.
#
# Exit codes: 0 every check passed; 1 a check or the build failed; 77 skipped: containers cannot be run here, and the
# last line says why. Removes the containers and images that it made.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly DEBIAN=debian:bookworm-slim MEMORY=512m
readonly ID=edgewise-test-$$ # names everything made here
keep=0 target=cpu most=200000000
for word in "$@"; do
  case $word in
    cpu) ;;
    cuda) target=cuda most=750000000 ;;
    --keep) keep=1 ;;
    *)
      sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
      [[ $word == --help ]] && exit 0
      exit 1
      ;;
  esac
done

say() { printf '\033[1m[container-test]\033[0m %s\n' "$*"; }
skip() { say "skipped: $*"; exit 77; }
die() { say "failed: $*"; exit 1; }
seconds() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }'; }

work=$(mktemp -d)
containers=()
images=()
cleanup() {
  local status=$? container image
  trap - EXIT
  for container in "${containers[@]}"; do
    ((status == 0 || status == 77)) || { say "log of $container:"; engine logs --tail 30 "$container" 2>&1 || true; }
    engine rm -f "$container" >/dev/null 2>&1 || true
  done
  for image in "${images[@]}"; do
    engine rmi "$image" >/dev/null 2>&1 || say "image $image could not be removed"
  done
  rm -rf --one-file-system "$work"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# ---- engine ---------------------------------------------------------------------------------------------------------

# The options of every container that this test runs.
locked_down=(--read-only --cap-drop ALL --security-opt no-new-privileges --memory "$MEMORY" --pids-limit 256)

if docker info >/dev/null 2>&1; then
  kind=docker
  engine() { docker "$@"; }
  build_image() { docker build --target "$target" "$@" .; }
else
  kind=podman
  # runc: crun refuses the mixed cgroups of some machines. The limits: raising them may not be permitted.
  engine() {
    if [[ $1 == run ]]; then
      shift
      podman --runtime runc run --ulimit nofile=1024:1024 --ulimit nproc=4096:4096 --no-healthcheck "$@"
    else
      podman --runtime runc "$@"
    fi
  }
  build_image() { buildah bud --isolation chroot --format docker --pull-never --target "$target" "$@" .; }
  locked_down+=(--read-only-tmpfs=false) # Docker's behaviour: no writable /tmp either
  ((EUID == 0)) || skip "no Docker engine answers, and podman is used as root only"
fi

# Installs those of the given Debian packages that are missing.
need() {
  local missing=() package
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  say "installing ${missing[*]}"
  apt-get -o DPkg::Lock::Timeout=500 update -qq >"$work/apt.log" 2>&1 &&
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=500 install -y -qq --no-install-recommends \
      "${missing[@]}" >>"$work/apt.log" 2>&1 || { tail -5 "$work/apt.log"; skip "apt-get could not install ${missing[*]}"; }
}

if [[ $kind == podman ]]; then
  command -v apt-get >/dev/null || skip "no Docker engine answers, and there is no apt-get to install podman with"
  need buildah podman runc conmon
  if [[ $(stat -f -c %T /var/lib) == overlayfs ]]; then # overlays cannot be stacked: we are in a container
    printf '[storage]\ndriver="vfs"\ngraphroot="%s"\nrunroot="%s"\n' "$work/images" "$work/run" >"$work/storage.conf"
    export CONTAINERS_STORAGE_CONF=$work/storage.conf
  fi
  podman info >"$work/info.log" 2>&1 || { tail -3 "$work/info.log"; skip "podman cannot store images here"; }
fi
say "engine: $kind"

# ---- base image -----------------------------------------------------------------------------------------------------

# The address of Debian's archive, and of its security updates, in this machine's apt configuration.
archive_of() {
  local security=$1
  { sed -n 's/^URIs:[[:space:]]*\([^[:space:]]*\).*/\1/p' /etc/apt/sources.list.d/*.sources
    sed -n 's/^deb[[:space:]]*\(\[[^]]*\]\)\{0,1\}[[:space:]]*\([^[:space:]]*\).*/\2/p' \
      /etc/apt/sources.list /etc/apt/sources.list.d/*.list; } 2>/dev/null |
    grep -E '/debian(-security)?/?$' | { if ((security)); then grep security; else grep -v security; fi; } | head -n 1
}

# Turns an unpacked Debian into what debian:bookworm-slim is, plus what apt needs to reach this machine's archive.
slim_down() {
  local root=$1 archive=$2 security file
  cat >"$root/etc/dpkg/dpkg.cfg.d/slim" <<'CFG'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/locale/*
CFG
  security=$(archive_of 1) || true
  { echo "deb $archive bookworm main"
    echo "deb $archive bookworm-updates main"
    [[ -z $security ]] || echo "deb $security bookworm-security main"; } >"$root/etc/apt/sources.list"
  # Who may sign for the registries, where that is said here.
  for file in /etc/pip.conf /usr/local/share/ca-certificates/*.crt; do
    [[ ! -f $file ]] || install -D -m 644 "$file" "$root$file"
  done
  for file in /etc/apt/apt.conf /etc/apt/apt.conf.d/* /etc/apt/auth.conf /etc/apt/auth.conf.d/*; do
    [[ -f $file ]] || continue
    if [[ $file == */auth.conf* ]] || grep -qE 'Acquire::(http|https|Check|Retries|ForceIPv|proxy)' "$file"; then
      install -D -m 644 "$file" "$root$file" # proxies, dates, credentials; nothing else of this machine
    fi
  done
}

# Sets `base`.
make_base() {
  local start=$EPOCHREALTIME root=${EDGEWISE_BASE_ROOT:-} archive
  archive=$(archive_of 0) || archive=http://deb.debian.org/debian
  if [[ -z $root ]]; then
    command -v apt-get >/dev/null && ((EUID == 0)) || skip "$DEBIAN cannot be pulled, and debootstrap needs root and apt-get"
    need debootstrap debian-archive-keyring
    root=$work/base
    say "making a base image by debootstrap from $archive"
    debootstrap --variant=minbase ${archive:+$([[ $archive == https:* ]] && echo --include=ca-certificates)} bookworm \
      "$root" "$archive" >"$work/debootstrap.log" 2>&1 || { tail -5 "$work/debootstrap.log"; skip "debootstrap failed"; }
    slim_down "$root" "$archive"
  fi
  base=localhost/$ID-base
  tar -C "$root" --exclude='./var/cache/apt/archives/*.deb' --exclude='./var/lib/apt/lists/*' --exclude=./usr/share/man \
    --exclude=./usr/share/locale --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -c . |
    engine import - "$base" >"$work/import.log" 2>&1 || { tail -5 "$work/import.log"; die "the base image cannot be imported"; }
  images+=("$base")
  rm -rf --one-file-system "$work/base"
  say "base image made in $(seconds "$start")"
}

if engine image inspect "$DEBIAN" >/dev/null 2>&1; then
  base=$DEBIAN
elif timeout 60 bash -c "$(declare -f engine); engine pull -q docker.io/library/$DEBIAN" >/dev/null 2>&1; then
  base=docker.io/library/$DEBIAN
  images+=("$base")
else
  say "$DEBIAN cannot be pulled here"
  make_base
fi
engine run --rm "${locked_down[@]}" "$base" true >"$work/probe.log" 2>&1 ||
  { tail -3 "$work/probe.log"; skip "$kind cannot run a container here"; }

# ---- build ----------------------------------------------------------------------------------------------------------

image=localhost/$ID
start=$EPOCHREALTIME
say "building the image; this compiles everything"
revision=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
build_image --build-arg BASE="$base" --build-arg JOBS="${EDGEWISE_JOBS:-}" --build-arg REVISION="$revision" -t "$image" \
  >"$work/build.log" 2>&1 || { tail -40 "$work/build.log"; die "the image does not build"; }
((keep)) || images+=("$image")
say "built in $(seconds "$start")"

# ---- checks ---------------------------------------------------------------------------------------------------------

failures=0
# check NAME COMMAND...: says whether the command succeeds.
check() {
  local name=$1 output
  shift
  if output=$("$@" 2>&1); then
    printf '  ok    %s\n' "$name"
  else
    printf '  FAIL  %s\n' "$name"
    [[ -z $output ]] || tail -5 <<<"$output" | sed 's/^/        /'
    failures=$((failures + 1))
  fi
}
equals() { [[ $1 == "$2" ]] || { echo "found: $1, expected: $2"; return 1; }; }
# client ARGUMENTS...: the command line in a container of its own, on this machine's network.
client() { engine run --rm --network host "${locked_down[@]}" ${mounts[@]+"${mounts[@]}"} --entrypoint edgewise "$image" "$@"; }
inspect() { engine inspect --format "$2" "$1"; }
# serve NAME [RUN OPTIONS...] -- [SERVER FLAGS...]: starts a server; sets `port`, `api_port` (HTTP) and `http_port` (metrics).
serve() {
  local name=$1 options=()
  shift
  while [[ $1 != -- ]]; do options+=("$1"); shift; done
  shift
  containers+=("$name")
  engine run -d --name "$name" "${locked_down[@]}" -p 127.0.0.1::8000 -p 127.0.0.1::8001 -p 127.0.0.1::8002 \
    ${options[@]+"${options[@]}"} "$image" "$@" >/dev/null
  port=$(engine port "$name" 8001/tcp) port=${port##*:}
  api_port=$(engine port "$name" 8000/tcp) api_port=${api_port##*:}
  http_port=$(engine port "$name" 8002/tcp) http_port=${http_port##*:}
}
# http PATH [PORT]: status line, headers and body.
http() {
  exec 3<>"/dev/tcp/127.0.0.1/${2:-$http_port}"
  printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$1" >&3
  tr -d '\r' <&3
  exec 3>&-
}
# wait_until_serving CLIENT FLAGS...: for at most 30 s.
wait_until_serving() {
  local state='' end=$((SECONDS + 30))
  while ((SECONDS < end)); do
    if state=$(client health --server="127.0.0.1:$port" --timeout=2s "$@" 2>&1); then return 0; fi
    sleep 0.2
  done
  echo "$state"
  return 1
}
mounts=()

say "the image"
size=$(inspect "$image" '{{.Size}}')
user=$(inspect "$image" '{{.Config.User}}')
printf '  size  %d MB (%d bytes, not compressed)\n' $((size / 1000000)) "$size"
check "is at most $((most / 1000000)) MB" test "$size" -le "$most"
check "names a numeric user other than root" equals "$user" 65532:65532
check "has a health check" grep -q 'edgewise' <(engine image inspect "$image" | grep -iA4 '"healthcheck"')

say "the server, with a read-only root, no capabilities and $MEMORY"
serve "$ID-plain" --
check "the published port says SERVING" wait_until_serving
check "its own health check passes" engine exec "$ID-plain" edgewise health --timeout=3s
ask=(predict --model=sentiment --text='a warm , funny and thoughtful film' --seed=7 --samples=4)
check "it predicts, through the published port" client "${ask[@]}" --server="127.0.0.1:$port"
check "it predicts, from inside" engine exec "$ID-plain" edgewise "${ask[@]}"
http /metrics >"$work/metrics"
http /healthz >"$work/healthz"
check "/metrics has both requests" grep -qx 'edgewise_requests_total{code="OK",model="sentiment",version="1"} 2' "$work/metrics"
http /v1/models "$api_port" >"$work/served"
check "/v1/models names a model" grep -q '"id":"sentiment"' "$work/served"
check "/healthz is 200" grep -q '^HTTP/1.1 200' "$work/healthz"
pid=$(inspect "$ID-plain" '{{.State.Pid}}')
if [[ -r /proc/$pid/root/usr/local/bin/edgewise-server ]]; then
  # field NAME: of the server's status, blanks squeezed.
  field() { awk -v name="$1:" '$1 == name { $1 = ""; print substr($0, 2) }' "/proc/$pid/status"; }
  listening() { awk '$4 == "0A" { n++ } END { print n + 0 }' "/proc/$pid/net/tcp" "/proc/$pid/net/tcp6"; }
  writable() { # file systems that are mounted for writing, and not made by the kernel or the engine
    awk '$4 ~ /^rw/ && $3 !~ /^(proc|sysfs|cgroup|cgroup2|mqueue|devpts)$/ && $2 !~ /^\/(dev|proc|sys|etc\/(hosts|hostname|resolv.conf)|run\/\.containerenv)(\/|$)/ { print $2 }' \
      "/proc/$pid/mounts"
  }
  # libraries are executable too; they are told by their names
  programs() { (cd "/proc/$pid/root" && find . -xdev -type f -perm /111 ! -name '*.so*' -printf '/%P\n' | sort | tr '\n' ' '); }
  check "runs as uid and gid 65532" equals "$(field Uid) $(field Gid)" '65532 65532 65532 65532 65532 65532 65532 65532'
  check "has no capabilities" equals "$(field CapPrm)$(field CapEff)$(field CapBnd)" "$(printf '0%.0s' {1..48})"
  check "cannot gain privileges" equals "$(field NoNewPrivs)" 1
  check "its root is read-only" awk '$2 == "/" && $4 ~ /^ro(,|$)/ { ok = 1 } END { exit !ok }' "/proc/$pid/mounts"
  check "has no writable file system" equals "$(writable)" ''
  others=''
  [[ $target == cpu ]] || others='/usr/local/bin/edgewise-selfcheck '
  check "holds no other program: no shell, no package manager" equals "$(programs)" \
    "/usr/local/bin/edgewise ${others}/usr/local/bin/edgewise-server "
  check "listens on three sockets" equals "$(listening)" 3
  printf '  note  resident %s, seccomp mode %s (2: filtered)\n' "$(field VmRSS)" "$(field Seccomp)"
else
  say "its processes cannot be seen from here: user, capabilities and mounts are not checked"
fi
start=$EPOCHREALTIME
engine stop -t 30 "$ID-plain" >/dev/null
check "SIGTERM drains: exit code 0" equals "$(inspect "$ID-plain" '{{.State.ExitCode}}')" 0
printf '  note  stopped in %s\n' "$(seconds "$start")"
check "it said so" grep -q '"event":"stopped"' <(engine logs "$ID-plain" 2>&1)

if [[ $target == cuda ]]; then
  say "what is there for a GPU"
  check "it served on the CPU and said why" grep -q '"gpu":"none found: there is no NVIDIA driver' <(engine logs "$ID-plain" 2>&1)
  # linker ARGUMENTS...: the dynamic linker, which lists what a file would load. The driver's library is opened by name.
  module=/usr/local/lib/edgewise/libedgewise_cuda.so
  linker() { engine run --rm "${locked_down[@]}" --entrypoint /lib64/ld-linux-x86-64.so.2 "$image" "$@"; }
  finds_all() {
    linker --list "$module" >"$work/loaded" 2>&1 && ! grep 'not found\|libcuda\.so' "$work/loaded" &&
      grep -q '=> /usr/local/lib/edgewise/libcublasLt\.so' "$work/loaded"
  }
  check "the module finds all its libraries, cuBLAS beside itself" finds_all
  asks_the_toolkit() {
    local variable
    for variable in NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility; do
      grep -q "\"$variable\"" <(engine image inspect "$image") || { echo "no $variable"; return 1; }
    done
  }
  check "asks the NVIDIA Container Toolkit for GPUs and the driver" asks_the_toolkit
  has_licence() { engine cp "$ID-plain:/usr/share/doc" - | tar -t | grep -x 'doc/nvidia_cublas-.*\.dist-info/License.txt'; }
  check "has the licence of cuBLAS" has_licence
  self() { client selfcheck --tokens=64 --repeats=1 --model=/models/sentiment/1 "$@"; }
  check "its self-check runs" self
  without_gpu() { # CODE WORDS COMMAND...: ends with that code and says these words
    local code=0 found
    found=$("${@:3}" 2>&1) || code=$?
    [[ $code == "$1" && $found == *"$2"* ]] || { echo "$code: $found"; return 1; }
  }
  check "--device=cuda ends with 4 and says what to do" without_gpu 4 'docker run --gpus all' \
    engine run --rm "${locked_down[@]}" "$image" --device=cuda
fi

# Mutual TLS, a token, and models of one's own: as docs/deploy.md says.
if command -v openssl >/dev/null; then
  say "the server, with mutual TLS, a token and its models in a volume"
  mkdir "$work/secrets"
  (
    cd "$work/secrets"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=test-ca -keyout ca.key -out ca.pem
    for name in server client; do
      openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$name" -keyout $name.key -out $name.csr
      openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 -out $name.pem \
        -extfile <(echo 'subjectAltName=DNS:localhost,IP:127.0.0.1')
    done
    openssl rand -hex 32 >token
  ) >"$work/openssl.log" 2>&1 || { tail -5 "$work/openssl.log"; die "openssl could not make certificates"; }
  cp -r examples/models "$work/models"
  chmod -R a+rX "$work" # the server's user is not ours
  mounts=(-v "$work/secrets:/secrets:ro" -v "$work/models:/models:ro")
  serve "$ID-tls" "${mounts[@]}" -- --tls_certificate=/secrets/server.pem --tls_key=/secrets/server.key \
    --tls_client_ca=/secrets/ca.pem --auth_token_file=/secrets/token
  tls=(--tls_ca_file=/secrets/ca.pem)
  mutual=("${tls[@]}" --tls_cert_file=/secrets/client.pem --tls_key_file=/secrets/client.key)
  token=(--token_file=/secrets/token)
  fails() { ! "$@"; }
  check "serves who has certificate and token" wait_until_serving "${mutual[@]}" "${token[@]}"
  ask+=(--server="127.0.0.1:$port" --timeout=5s)
  check "predicts" client "${ask[@]}" "${mutual[@]}" "${token[@]}"
  check "refuses who has no token" fails client "${ask[@]}" "${mutual[@]}"
  check "refuses who has no certificate" fails client "${ask[@]}" "${tls[@]}" "${token[@]}"
  check "refuses plain text" fails client "${ask[@]}"
  engine stop -t 30 "$ID-tls" >/dev/null
  check "drains" equals "$(inspect "$ID-tls" '{{.State.ExitCode}}')" 0
fi

((keep)) && say "kept: $image"
((failures == 0)) || die "$failures checks"
say "every check passed; image size $((size / 1000000)) MB"
