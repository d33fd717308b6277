#!/usr/bin/env bash
# Starts a server on the bundled models, asks it, shows the answers and the metrics, stops it.
# usage: tools/demo.sh BIN_DIR      (`./dev demo` builds first)
set -euo pipefail

BIN=$(cd "${1:?usage: tools/demo.sh BIN_DIR}" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
SERVER=
WORK=$(mktemp -d)

# Ends the server that this script started, gently, then not; its exit status is in STATUS.
stop_server() {
  local tries=0
  [[ -n $SERVER ]] || return 0
  kill -TERM "$SERVER" 2>/dev/null || true
  while kill -0 "$SERVER" 2>/dev/null && ((tries++ < 100)); do sleep 0.1; done
  kill -KILL "$SERVER" 2>/dev/null || true
  STATUS=0
  wait "$SERVER" || STATUS=$?
  SERVER=
}
trap 'stop_server; rm -rf "$WORK"' EXIT
trap 'exit 130' INT TERM

title() { printf '\n\033[1m%s\033[0m\n' "$*"; }
say() { printf '%s\n' "$*"; }
die() { printf 'demo: %s\n' "$*" >&2; exit 1; }

# A number of the server's log line "serving".
announced() { sed -nE "s/.*\"event\":\"serving\".*\"$1\":([0-9]+).*/\1/p" "$WORK/log"; }

start_server() {
  : >"$WORK/log"
  "$BIN/edgewise-server" --model_repository=examples/models --listen=127.0.0.1:0 --metrics_listen=127.0.0.1:0 \
    2>"$WORK/log" &
  SERVER=$!
  local tries=0
  until [[ -n $(announced port) ]] &&
    "$BIN/edgewise" health --server="127.0.0.1:$(announced port)" --timeout=2s >/dev/null 2>&1; do
    kill -0 "$SERVER" 2>/dev/null || { cat "$WORK/log" >&2; die "the server ended"; }
    ((tries++ < 100)) || { cat "$WORK/log" >&2; die "no model is ready after 10 s"; }
    sleep 0.1
  done
  ADDRESS=127.0.0.1:$(announced port)
  METRICS_PORT=$(announced metrics_port)
}

edgewise() { "$BIN/edgewise" "$@" --server="$ADDRESS"; }
has_model() { [[ $MODELS == *"\"name\": \"$1\""* ]]; }

# ask "what this shows" FLAGS...: prints the command as one would type it, then the lines of its answer that matter.
ask() {
  local what=$1 word shown=
  shift
  for word in "$@"; do [[ $word == *[[:space:]]* ]] && word="${word%%=*}='${word#*=}'"; shown+=" $word"; done
  say ""
  say "$what"
  printf '\033[2m  $ edgewise predict%s\033[0m\n' "$shown"
  edgewise predict "$@" >"$WORK/answer"
  grep -E '^(prediction|probability|uncertainty|samples|edges|density|budget|time) ' "$WORK/answer" | sed 's/^/    /'
}

# ask_file "what this shows" FILE FLAGS...: one line for each of the file's first inputs, and a summary.
ask_file() {
  local what=$1 file=$2
  shift 2
  say ""
  say "$what"
  printf '\033[2m  $ head -n 3 %s | edgewise predict --input=- %s\033[0m\n' "$file" "$*"
  head -n 3 "$file" | edgewise predict --input=- "$@" --concurrency=1 | grep -v '^$' | sed 's/^/    /'
}

# The metrics page, through bash alone.
metrics() {
  exec 3<>"/dev/tcp/127.0.0.1/$METRICS_PORT"
  printf 'GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
  cat <&3
  exec 3>&-
}

title "Edgewise demo"
start_server
MODELS=$(edgewise models --json)
say "A server is up: gRPC on $ADDRESS, metrics on http://127.0.0.1:$METRICS_PORT/metrics. Its models:"
say ""
edgewise models

say ""
say "An edge is one pair of tokens that an attention head looks at. The models choose their edges per input; density is"
say "edges over all pairs. A budget caps the edges; several samples draw the edges several times and average."

if has_model sentiment; then
  title "sentiment: is a sentence about a film friendly?"
  TEXT='a warm , funny and beautifully acted film that never wastes a minute'
  ask "As the model likes it:" --model=sentiment --text="$TEXT" --seed=1
  ask "With at most 5 % of all pairs:" --model=sentiment --text="$TEXT" --seed=1 --max_density=0.05
  ask "16 samples; ± is the standard deviation over the samples, mutual information what they disagree on:" \
    --model=sentiment --text="$TEXT" --seed=1 --samples=16
fi

if has_model listops; then
  title "listops: the value of a nested expression"
  say "[MAX 4 [MIN 8 5 9 ] 1 [SM 7 2 3 ] ] is 5: the minimum is 5, the sum of 7, 2 and 3 modulo 10 is 2."
  ask "The model reads it token by token, as text:" --model=listops --text='[MAX 4 [MIN 8 5 9 ] 1 [SM 7 2 3 ] ]' \
    --seed=1 --samples=16
fi

if has_model long && [[ -e examples/data/long.jsonl ]]; then
  title "long: which colour goes with the city that a text of 2,047 words asks for?"
  ask_file "Every pair of tokens (dense attention):" examples/data/long.jsonl --model=long --seed=1 --dense
  ask_file "Only the edges that the model draws:" examples/data/long.jsonl --model=long --seed=1
  ask_file "At most 1 % of all pairs:" examples/data/long.jsonl --model=long --seed=1 --max_density=0.01
fi

if has_model duplicates; then
  title "duplicates: which of 256 tokens occur more than once?"
  ask_file "The task needs every pair, and the model learned so (n/256 right is printed per input):" \
    examples/data/duplicates.jsonl --model=duplicates --seed=1
  ask_file "What a cap at half of the pairs costs:" examples/data/duplicates.jsonl --model=duplicates --seed=1 \
    --max_density=0.5
fi

if has_model shakespeare-ssa; then
  title "shakespeare-ssa: a language model of characters, attention in sampled windows"
  printf '\033[2m  $ edgewise generate --model=shakespeare-ssa --prompt=ROMEO: --max_new_tokens=200 --seed=1\033[0m\n'
  edgewise generate --model=shakespeare-ssa --prompt=ROMEO: --max_new_tokens=200 --seed=1 2>&1 | sed 's/^/    /'
fi

title "What Prometheus would see"
SHOWN='items_total|attention_(edges|pairs)_total|edge_budget_capped_total|input_density_ratio_(count|sum)'
metrics | grep -E "^edgewise_($SHOWN)" | grep -v ' 0$' | sed 's/^/    /'

title "Stopping the server (SIGTERM)"
stop_server
((STATUS == 0)) || die "the server ended with status $STATUS; expected 0"
say "It finished its work and ended with status 0."
say ""
say "Next: ./dev serve, then build/bin/edgewise predict --help; examples/README.md says how good the models are."
