#!/usr/bin/env bash
# bundle.sh BUILD_DIR FOLDER: what a machine with a GPU needs to test and time Edgewise, without a compiler or a package
# there; and the same as FOLDER.tar.xz. `./dev gpu-bundle` builds first. CUDA's own libraries stay out: run.sh finds them
# on that machine.
set -euo pipefail

build=$(cd "${1:?usage: bundle.sh BUILD_DIR FOLDER}" && pwd)
bundle=${2:?usage: bundle.sh BUILD_DIR FOLDER}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
limit_mb=38  # of the archive: it travels beside a checkout

die() { printf 'gpu-bundle: %s\n' "$*" >&2; exit 1; }

suites=(cuda_backend_attention cuda_backend_cap cuda_backend_operations budget ensemble generation golden padded_density
  reproducible)
programs=("$build"/bin/{edgewise-server,edgewise,edgewise-selfcheck})
modules=("$build"/bin/lib{edgewise_cuda,edgewise_cusparse,edgewise_gpu_bench}.so)
for suite in "${suites[@]}"; do programs+=("$build/tests/${suite}_test"); done
for file in "${programs[@]}" "${modules[@]}"; do [[ -f $file ]] || die "$file is not there; run ./dev gpu-bundle"; done

# Only what this script made is deleted.
if [[ -e $bundle ]]; then
  [[ -f $bundle/MANIFEST ]] || die "$bundle is there and is no bundle"
  rm -r "$bundle"
fi
mkdir -p "$bundle"/{bin,lib/absl,bench,testdata,models}
{
  printf 'date %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
  printf 'revision %s\n' "$(git describe --always --dirty 2>/dev/null || echo unknown)"
} >"$bundle/MANIFEST"
install -s -m 755 "${programs[@]}" "$bundle/bin/"
install -s -m 644 "${modules[@]}" "$bundle/bin/"

# Every library but those of the C and C++ runtime, which any machine has, and CUDA's. Abseil lies apart: the Python of
# the benchmark may see it and no other.
while IFS= read -r library; do
  case $(basename "$library") in
    libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libstdc++.so.* | libgcc_s.so.* | ld-linux*) ;;
    libcublas* | libcusparse* | libnvJitLink* | libcudart* | libcuda.so.*) ;;
    libabsl_*) install -m 644 "$(realpath "$library")" "$bundle/lib/absl/$(basename "$library")" ;;
    *) install -m 644 "$(realpath "$library")" "$bundle/lib/$(basename "$library")" ;;
  esac
done < <(ldd "${programs[@]}" "${modules[@]}" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u)

cp -r tests/testdata/. "$bundle/testdata/"
for model in sentiment listops shakespeare-ssa; do cp -r "examples/models/$model" "$bundle/models/"; done
cp bench/gpu/*.py "$bundle/bench/"
install -m 755 tools/gpu/run.sh "$bundle/run.sh"

archive=$bundle.tar.xz
tar -C "$(dirname "$bundle")" -c "$(basename "$bundle")" | xz -T0 >"$archive"
megabytes=$(du -sm --apparent-size "$archive" | cut -f1)
printf '%s: %s MB; %s: %s MB\n' "$bundle" "$(du -sm "$bundle" | cut -f1)" "$archive" "$megabytes"
((megabytes <= limit_mb)) || die "the archive is larger than the $limit_mb MB it may have"
