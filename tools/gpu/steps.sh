#!/usr/bin/env bash
# Tests and times Edgewise on the GPU of this machine; run.sh of the bundle that `./dev gpu-bundle` makes calls it.
#
#     run.sh [selfcheck] [products] [tests] [models] [server] [sanitizer] [bench] [figures]
#
# Nothing named: all but products and figures, in this order. memcheck, racecheck, synccheck and initcheck are the parts
# of sanitizer; products is a part of tests: rows of a matrix product in any number, compared byte by byte; figures is a
# part of models and bench: ratios of times, beside what they must be. A step that fails or takes too
# long stops no other; a table of all comes last. Exit code: 0, 1 if a step failed or was not run for want of time, 2 if
# there is no such step, 77 without a GPU, 130 cut off. Logs (logs.tar.gz), the table (summary.txt) and the numbers
# (attention_gpu.json, .png, models_gpu.json, figures_layers.json, figures_models.json) go to $OUT, or to ./out, as soon as they are there.
#   EDGEWISE_GPU_SECONDS         ends within that many seconds, whatever hangs: steps get what is left, or are not run
#   EDGEWISE_SKIP_SANITIZER=1    leaves compute-sanitizer out
#   EDGEWISE_BENCH_FLAGS         of bench/gpu/attention_gpu.py; --quick if not set
#   EDGEWISE_MODELS_FLAGS        of bench/gpu/models_gpu.py, more
#   EDGEWISE_GPU_DEVICE          cuda:0
#   EDGEWISE_GPU_TIME_SCALE      multiplies every step's time limit: 1
set -uo pipefail

bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
device=${EDGEWISE_GPU_DEVICE:-cuda:0}
scale=${EDGEWISE_GPU_TIME_SCALE:-1}
seconds=${EDGEWISE_GPU_SECONDS:-0}
closing=20 # seconds to end a step that does not want to, and the server, and to pack the logs
# Seconds of a step, all its parts together: at most 400. So have the device's check, selfcheck, products, tests and
# models together, also where each has to be killed, which takes 5 more.
declare -A seconds_of=([device]=15 [selfcheck]=30 [products]=40 [tests]=180 [models]=110 [server]=120 [bench]=390 [figures]=390
  [memcheck]=390 [racecheck]=390 [synccheck]=390 [initcheck]=390)
step_end=0 # of the running step, by the clock; 0: none
out=${OUT:-out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
logs=$(mktemp -d)
running='' running_name='' running_since='' server='' alarm=''
names=() results=() times=()
failed=0

clock() { date +%s; } # in seconds; what has run out is asked of it alone
began=$(clock)

since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }

# Ends the server that this script started, gently, then not; its exit status is in server_status.
stop_server() {
  local tries=0
  server_status=0
  [[ -n $server ]] || return 0
  kill -TERM "$server" 2>/dev/null
  while kill -0 "$server" 2>/dev/null && ((tries++ < 100)); do sleep 0.1; done
  kill -KILL "$server" 2>/dev/null
  wait "$server" || server_status=$?
  server=''
}

write_table() {
  cat "$bundle/MANIFEST"
  printf '\n%-44s %-22s %8s\n' step result seconds
  for i in "${!names[@]}"; do printf '%-44s %-22s %8s\n' "${names[i]}" "${results[i]}" "${times[i]}"; done
}

record() { # NAME RESULT SECONDS
  names+=("$1") results+=("$2") times+=("$3")
  [[ $2 != FAILED* && $2 != "not run"* ]] || failed=1
  printf '%-44s %-22s %6s s\n' "$1" "$2" "$3"
  write_table >"$out/summary.txt"
}

pack_logs() { tar -C "$logs" -czf "$out/logs.tar.gz" .; }

finish() {
  trap '' PIPE # whoever read the output may be gone
  [[ -z $alarm ]] || kill "$alarm" 2>/dev/null
  if [[ -n $running ]]; then
    kill -TERM "$running" 2>/dev/null
    record "$running_name" "FAILED: cut off" "$(since "$running_since")"
  fi
  stop_server
  ((${#names[@]} == 0)) || pack_logs
  rm -rf "$logs"
}
trap finish EXIT
trap 'exit 130' INT TERM PIPE
# Should a step not even be killed, which a GPU that hangs can do, this script ends all the same.
if ((seconds > 0)); then
  {
    sleep $((seconds > 13 ? seconds - 12 : 1)) &
    trap 'kill $!; exit' TERM
    wait $! && kill -TERM $$
  } &>/dev/null &
  alarm=$!
fi

# The folder of a CUDA library: of the toolkit, of PyTorch's wheels, or empty where the loader knows it.
wheels=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"] + "/nvidia")' 2>/dev/null)
folder_of() {
  local folder
  for folder in /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib "$wheels"; do
    [[ -d $folder ]] && find -L "$folder" -name "$1" -printf '%h\n' 2>/dev/null | head -n 1
  done | head -n 1
}
libraries=
for library in libcublasLt.so.13 libcusparse.so.12 libnvJitLink.so.13; do
  folder=$(folder_of "$library")
  [[ -z $folder || :$libraries: == *:"$folder":* ]] || libraries=$libraries:$folder
done
# The driver's folder, where the loader does not know it.
if [[ -d /usr/local/nvidia/lib64 ]]; then libraries=$libraries:/usr/local/nvidia/lib64; fi
run_path=$bundle/lib:$bundle/lib/absl$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
python_path=$bundle/lib/absl${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} # PyTorch loads CUDA's libraries from where it keeps them

scaled() { awk -v a="$1" -v b="$scale" 'BEGIN { printf "%d", a * b + 1 }'; } # SECONDS

# Seconds that are left for the running step.
left() {
  local now most=1000000
  now=$(clock)
  ((seconds == 0)) || most=$((seconds - closing - (now - began)))
  ((step_end == 0 || step_end - now >= most)) || most=$((step_end - now))
  echo "$most"
}

allowed() { # SECONDS: as many, or those that are left; 0 would be no limit to timeout
  local most
  most=$(left)
  echo $(($1 < most ? $1 : most > 1 ? most : 1))
}

# Whether it is too late for another step; if so it is recorded.
too_late() { # NAME
  (($(left) < 1)) || return 1
  record "$1" "not run: out of time" 0
}

# step NAME SECONDS COMMAND...: runs it under a time limit; its output is in the log of that name. Only a benchmark may
# find that there is no device for it: the others come after that was asked.
step() {
  local name=$1 limit=$2 start=$EPOCHREALTIME status=0 result took
  local log=$logs/${name//[^a-zA-Z0-9_.-]/_}.log
  shift 2
  : >"$log"
  ! too_late "$name" || return 1
  limit=$(allowed "$(scaled "$limit")")
  # In the background, so that a signal to this script is not kept waiting.
  timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1 </dev/null &
  running=$! running_name=$name running_since=$start
  wait "$running" || status=$?
  running=''
  took=$(since "$start")
  case $status in
    0) result=passed ;;
    77) [[ $name == bench* || $name == "figures layers" ]] && result="skipped: no device" || result="FAILED: no device" ;;
    124 | 137) result="FAILED: over $limit s" ;;
    *) result="FAILED: status $status" ;;
  esac
  record "$name" "$result" "$took"
  if [[ $result == FAILED* ]]; then tail -n 25 "$log" | sed 's/^/    /'; fi
  return "$status"
}

on_device=(env "LD_LIBRARY_PATH=$run_path" "EDGEWISE_TESTDATA=$bundle/testdata" "EDGEWISE_TEST_DEVICE=$device")
step_on_device() { # NAME SECONDS COMMAND...
  local name=$1 limit=$2
  shift 2
  step "$name" "$limit" "${on_device[@]}" "$@"
}

# Every suite, then in bf16 the suites of models that suites.txt names for it. A suite of the backend runs in both
# precisions by itself.
run_tests() {
  local suite precisions
  while read -r suite precisions; do
    step_on_device "tests $suite" 60 "$bundle/bin/${suite}_test" --gtest_brief=1
  done <"$bundle/suites.txt"
  while read -r suite precisions; do
    [[ $precisions == *bf16* ]] || continue
    step_on_device "tests $suite bf16" 60 EDGEWISE_TEST_PRECISION=bf16 "$bundle/bin/${suite}_test" --gtest_brief=1
  done <"$bundle/suites.txt"
}

run_products() {
  step_on_device "products" "${seconds_of[products]}" "$bundle/bin/backend_operations_test" --gtest_brief=1 \
    --gtest_filter='*RowsInAnyNumber*:*ARowDependsOnNothingElse*'
}

# Every kernel once, in small calls.
sanitize() { # TOOL
  local sanitizer tool=$1
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
  if [[ ${EDGEWISE_SKIP_SANITIZER:-0} == 1 || -z $sanitizer ]]; then
    record "$tool" "skipped: $([[ -n $sanitizer ]] && echo asked for || echo not installed)" 0
    return
  fi
  step_on_device "$tool" "${seconds_of[$tool]}" EDGEWISE_CUDA_OWN_PRODUCTS=1 "$sanitizer" --tool "$tool" \
    --error-exitcode 9 "$bundle/bin/backend_attention_test" --gtest_brief=1 --gtest_filter='*EveryKernelTest*'
}
run_memcheck() { sanitize memcheck; }
run_racecheck() { sanitize racecheck; }
run_synccheck() { sanitize synccheck; }
run_initcheck() { sanitize initcheck; }

run_selfcheck() {
  local precision
  for precision in fp32 bf16; do
    step_on_device "selfcheck $precision" 20 "$bundle/bin/edgewise-selfcheck" --device="$device" \
      --precision="$precision" --model="$bundle/models/sentiment/1" --tokens="${EDGEWISE_SELFCHECK_TOKENS:-1024}"
    cat "$logs/selfcheck_$precision.log"
  done
}

# A number of the server's log line "serving".
announced() { sed -nE "s/.*\"event\":\"serving\".*\"$1\":([0-9]+).*/\1/p" "$logs/server.log"; }

run_server() {
  local ready=no start=$EPOCHREALTIME until
  : >"$logs/server.log"
  ! too_late "server starts" || return
  "${on_device[@]}" "$bundle/bin/edgewise-server" --model_repository="$bundle/models" --device="$device" --listen=127.0.0.1:0 \
    --metrics_listen=127.0.0.1:0 2>>"$logs/server.log" &
  server=$!
  until=$(($(clock) + $(allowed 60)))
  while kill -0 "$server" 2>/dev/null && (($(clock) < until)); do
    if [[ -n $(announced port) ]] && "${on_device[@]}" "$bundle/bin/edgewise" health --server="127.0.0.1:$(announced port)" \
      --timeout=2s >/dev/null 2>&1; then
      ready=yes
      break
    fi
    sleep 0.1
  done
  if [[ $ready != yes ]]; then
    record "server starts" "FAILED" "$(since "$start")"
    tail -n 25 "$logs/server.log"
    stop_server
    return
  fi
  record "server starts" passed "$(since "$start")"
  local ask=("$bundle/bin/edgewise") at
  at=--server=127.0.0.1:$(announced port)
  step_on_device "server predict" 60 "${ask[@]}" predict "$at" --model=sentiment --text="a warm , funny and moving film" \
    --samples=8 --seed=1
  cat "$logs/server_predict.log"
  step "server answers on the device" 5 grep -q 'device  *cuda/' "$logs/server_predict.log"
  step_on_device "server predict again" 60 "${ask[@]}" predict "$at" --model=sentiment \
    --text="a warm , funny and moving film" --samples=8 --seed=1
  # The same answer but for its times and its id.
  local same='/^(prediction|probability|uncertainty|samples|edges|density)/p'
  step "server answers the same" 5 diff <(sed -nE "$same" "$logs/server_predict.log") \
    <(sed -nE "$same" "$logs/server_predict_again.log")
  step_on_device "server predict under a cap" 60 "${ask[@]}" predict "$at" --model=listops \
    --text="[MAX 2 9 [MIN 4 7 ] 0 ]" --max_density=0.05 --seed=1
  step_on_device "server generate" 60 "${ask[@]}" generate "$at" --model=shakespeare-ssa --prompt=ROMEO: \
    --max_new_tokens=100 --seed=1
  cat "$logs/server_generate.log"
  stop_server
  if ((server_status == 0)); then record "server stops" passed 0; else record "server stops" "FAILED: status $server_status" 0; fi
}

# The script ends a little before its limit, so that it says what it had no time for.
run_models() {
  local limit=${seconds_of[models]} within flags=()
  read -ra flags <<<"${EDGEWISE_MODELS_FLAGS:-}"
  within=$(($(allowed "$(scaled "$limit")") - 5))
  step "models" "$limit" env LD_LIBRARY_PATH="$python_path" PYTHONUNBUFFERED=1 python3 "$bundle/bench/gpu/models_gpu.py" \
    --bin "$bundle/bin" --library_path "$run_path" --models "$bundle/models" --device "$device" \
    --json "$out/models_gpu.json" --seconds "$within" "${flags[@]}"
  cat "$logs/models.log"
}

run_bench() {
  local flags=()
  read -ra flags <<<"${EDGEWISE_BENCH_FLAGS:---quick}"
  step "bench attention" "${seconds_of[bench]}" env LD_LIBRARY_PATH="$python_path" PYTHONUNBUFFERED=1 python3 "$bundle/bench/gpu/attention_gpu.py" \
    --ours "$bundle/bin/libedgewise_gpu_bench.so" --cusparse "$bundle/bin/libedgewise_cusparse.so" \
    --json "$out/attention_gpu.json" --plot "$out/attention_gpu.png" "${flags[@]}"
  cat "$logs/bench_attention.log"
}

# The layers first: the models' part needs about a minute, and gets what is left.
run_figures() {
  local within
  step "figures layers" $((${seconds_of[figures]} - 100)) env LD_LIBRARY_PATH="$python_path" PYTHONUNBUFFERED=1 \
    python3 "$bundle/bench/gpu/attention_gpu.py" --layers --ours "$bundle/bin/libedgewise_gpu_bench.so" \
    --json "$out/figures_layers.json"
  cat "$logs/figures_layers.log"
  within=$(($(allowed "$(scaled "${seconds_of[figures]}")") - 5))
  step "figures models" "${seconds_of[figures]}" env LD_LIBRARY_PATH="$python_path" PYTHONUNBUFFERED=1 \
    python3 "$bundle/bench/gpu/models_gpu.py" --figures --bin "$bundle/bin" --library_path "$run_path" \
    --models "$bundle/models" --device "$device" --json "$out/figures_models.json" --seconds "$within"
  cat "$logs/figures_models.log"
}

cat "$bundle/MANIFEST"
timeout 30 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null ||
  echo "nvidia-smi shows no GPU"
echo "CUDA libraries: ${libraries#:}"
(($#)) || set -- selfcheck tests models server sanitizer bench
steps=()
for what in "$@"; do
  case $what in
    sanitizer) steps+=(memcheck racecheck synccheck initcheck) ;;
    selfcheck | products | tests | models | server | bench | figures) steps+=("$what") ;;
    memcheck | racecheck | synccheck | initcheck) steps+=("$what") ;;
    *) echo "run.sh knows: selfcheck, products, tests, models, server, sanitizer (memcheck, racecheck, synccheck," \
      "initcheck), bench, figures (found: $what)" >&2; exit 2 ;;
  esac
done

timeout 30 nvidia-smi -q >"$logs/nvidia-smi.log" 2>&1
timeout --kill-after=5 "$(allowed "$(scaled "${seconds_of[device]}")")" "${on_device[@]}" "$bundle/bin/edgewise-selfcheck" --device="$device" --tokens=64 \
  --repeats=1 >"$logs/device.log" 2>&1
status=$?
if ((status == 4)) && ! timeout 30 nvidia-smi -L >/dev/null 2>&1; then
  echo "GPU tests skipped: $(tail -n 1 "$logs/device.log")"
  exit 77
fi
if ((status == 4 || status == 124 || status == 137)); then
  record "the GPU can be used" "FAILED: $(tail -n 1 "$logs/device.log")" 0 # the steps below say more
fi

for what in "${steps[@]}"; do
  step_end=$(($(clock) + $(scaled "${seconds_of[$what]}")))
  "run_$what"
  pack_logs
done
echo
cat "$out/summary.txt"
exit $failed
