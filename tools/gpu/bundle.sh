#!/usr/bin/env bash
# bundle.sh BUILD_DIR FOLDER: makes FOLDER: run.sh and, as one archive, what a machine with a GPU needs to test and time
# Edgewise, without a compiler or a package there. `./dev gpu-bundle` builds first. CUDA's own libraries stay out: steps.sh
# finds them on that machine.
set -euo pipefail

build=$(cd "${1:?usage: bundle.sh BUILD_DIR FOLDER}" && pwd)
bundle=${2:?usage: bundle.sh BUILD_DIR FOLDER}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
limit_mb=38 # it travels beside a checkout

die() { printf 'gpu-bundle: %s\n' "$*" >&2; exit 1; }

mapfile -t suites < <(cut -d' ' -f1 tools/gpu/suites.txt)
programs=("$build"/bin/{edgewise-server,edgewise,edgewise-selfcheck})
modules=("$build"/bin/lib{edgewise_cuda,edgewise_cusparse,edgewise_gpu_bench}.so)
for suite in "${suites[@]}"; do programs+=("$build/tests/${suite}_test"); done
for file in "${programs[@]}" "${modules[@]}"; do [[ -f $file ]] || die "$file is not there; run ./dev gpu-bundle"; done

contents=$(mktemp -d)
trap 'rm -rf "$contents"' EXIT
mkdir -p "$contents"/{bin,lib/absl,bench/gpu,tools/edgewise_tools,tools/evaluation,examples/data,testdata,models}
{
  printf 'date %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
  printf 'revision %s\n' "$(git describe --always --dirty 2>/dev/null || echo unknown)"
} >"$contents/MANIFEST"
install -s -m 755 "${programs[@]}" "$contents/bin/"
install -s -m 644 "${modules[@]}" "$contents/bin/"

# Every library but those of the C and C++ runtime, which any machine has, and CUDA's. Abseil lies apart: the Python of
# the benchmark may see it and no other.
while IFS= read -r library; do
  case $(basename "$library") in
    libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libstdc++.so.* | libgcc_s.so.* | ld-linux*) ;;
    libcublas* | libcusparse* | libnvJitLink* | libcudart* | libcuda.so.*) ;;
    libabsl_*) install -m 644 "$(realpath "$library")" "$contents/lib/absl/$(basename "$library")" ;;
    *) install -m 644 "$(realpath "$library")" "$contents/lib/$(basename "$library")" ;;
  esac
done < <(ldd "${programs[@]}" "${modules[@]}" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u)

cp -r tests/testdata/. "$contents/testdata/"
for model in sentiment listops long shakespeare-ssa; do
  cp -r "examples/models/$model" "$contents/models/"
done
# The benchmarks, where they lie in the repository, and what they import.
cp bench/gpu/*.py "$contents/bench/gpu/"
cp bench/{random_models,sbm_models}.py "$contents/bench/"
cp tools/edgewise_tools/*.py "$contents/tools/edgewise_tools/"
cp tools/evaluation/*.py "$contents/tools/evaluation/"
cp examples/data/long.jsonl "$contents/examples/data/"
install -m 755 tools/gpu/steps.sh "$contents/steps.sh"
cp tools/gpu/suites.txt "$contents/"
chmod -R u+rwX,go+rX "$contents"

tools/gpu/pack.sh "$contents" "$bundle" "$limit_mb"
