#!/usr/bin/env bash
# Starts a server on the bundled models, tells in three scenes what budgets and samples buy, shows metrics, stops the server.
# Every number is measured in this run. Ends with another status than 0 where an answer is above its cap.
# usage: tools/demo.sh BIN_DIR      (`./dev demo` builds first)
# shellcheck disable=SC2059  # the formats of table rows are variables
set -euo pipefail

BIN=$(cd "${1:?usage: tools/demo.sh BIN_DIR}" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
TEXTS=examples/data/long.jsonl
SAMPLES=16
SERVER=
WORK=$(mktemp -d)
BOLD='' DIM='' PLAIN=''
if [[ -t 1 && ${TERM:-dumb} != dumb ]]; then BOLD=$'\033[1m' DIM=$'\033[2m' PLAIN=$'\033[0m'; fi

# Ends the server that this script started, gently, then not; its exit status is in STATUS.
stop_server() {
  local tries=0
  [[ -n $SERVER ]] || return 0
  kill -TERM "$SERVER" 2>/dev/null || true
  while kill -0 "$SERVER" 2>/dev/null && ((tries++ < 600)); do sleep 0.1; done
  kill -KILL "$SERVER" 2>/dev/null || true
  STATUS=0
  wait "$SERVER" || STATUS=$?
  SERVER=
}
trap 'stop_server; rm -rf "$WORK"' EXIT
trap 'exit 130' INT TERM

title() { printf '\n%s%s%s\n\n' "$BOLD" "$*" "$PLAIN"; }
say() { printf '%s\n' "$*"; }
command_line() { printf '%s  $ %s%s\n' "$DIM" "$*" "$PLAIN"; }
conclude() { printf '\n%s→ %s%s\n' "$BOLD" "$*" "$PLAIN"; }
commas() { sed -E ':a; s/\B[0-9]{3}\b/,&/; ta'; }  # 16777 -> 16,777
die() { printf 'demo: %s\n' "$*" >&2; exit 1; }

# A number of the server's log line "serving".
announced() { sed -nE "s/.*\"event\":\"serving\".*\"$1\":([0-9]+).*/\1/p" "$WORK/log"; }

start_server() {
  : >"$WORK/log"
  "$BIN/edgewise-server" --model_repository=examples/models --listen=127.0.0.1:0 --metrics_listen=127.0.0.1:0 \
    --http_listen=127.0.0.1:0 2>"$WORK/log" &
  SERVER=$!
  local tries=0
  until [[ -n $(announced port) ]] &&
    "$BIN/edgewise" health --server="127.0.0.1:$(announced port)" --timeout=2s >/dev/null 2>&1; do
    kill -0 "$SERVER" 2>/dev/null || { cat "$WORK/log" >&2; die "the server ended"; }
    ((tries++ < 600)) || { cat "$WORK/log" >&2; die "no model is ready after 60 s"; }
    sleep 0.1
  done
  ADDRESS=127.0.0.1:$(announced port)
  METRICS_PORT=$(announced metrics_port)
}

edgewise() { "$BIN/edgewise" "$@" --server="$ADDRESS"; }

# setting NAME: a row of the table of `edgewise evaluate` in $WORK/evaluation, into variables. Columns are two spaces apart.
setting() {
  IFS='|' read -r NAME ANSWERED RIGHT DENSITY EDGES MOST OVER COMPUTE SPEED < <(
    awk -F '  +' -v OFS='|' -v name="$1" '{ sub(/^ +/, "") } $2 == name && NF == 13 {
      print $2, $4, sprintf("%.0f", $5 * $4 / 100), $6, $7, $8, $10, $11, $13 }' "$WORK/evaluation") ||
    die "\`edgewise evaluate\` has no row \"$1\""
  [[ $ANSWERED == "$COUNT" ]] || die "$NAME: $ANSWERED of $COUNT texts answered"
}

# predict FILE FLAGS...: the answers of `long` to a file's texts, a line each:
# LABEL LABEL_ID PROBABILITY SPREAD MUTUAL_INFORMATION PASSES.
predict() {
  edgewise predict --model=long --input "$@" --seed=1 --concurrency=1 --json 2>"$WORK/errors" | awk '
    function value(name) {
      if (!match($0, "\"" name "\":[^],}]*")) exit 1
      found = substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3)
      gsub(/["[]/, "", found)
      return found
    }
    function element(name, i) {
      match($0, "\"" name "\":[^]]*")
      split(substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 4), list, ",")
      return list[i + 1] + 0
    }
    { id = value("label_id")
      print value("label"), id, element("probabilities", id), element("stddev", id), value("mutual_information"),
        value("samples") }' || { cat "$WORK/errors" >&2; die "a text has no answer"; }
}

title "Edgewise demo"
start_server
COUNT=$(grep -c . "$TEXTS")
say "A server is up: gRPC on $ADDRESS, metrics on http://127.0.0.1:$METRICS_PORT/metrics."
say "A page to try it, while the demo runs: http://127.0.0.1:$(announced http_port)/"
say ""
say "An edge is one pair of tokens that an attention head looks at. Dense attention looks at every pair; these models"
say "choose their edges for each input. Density is edges over all pairs."
say ""
say "The task of the model \"long\": 2,047 words of Shakespeare with notes strewn in, as \"delhi=green\", and a question,"
say "as \"delhi?\". Which colour goes with that city? $COUNT texts are bundled, with their answers. The model was trained"
say "with edges that it draws; dense attention runs on the same weights."

title "1. Must a model look at every pair?"
say "Asking all $COUNT texts with dense attention, with the drawn edges, and under two caps ..."
command_line "edgewise evaluate --model=long --data=$TEXTS --caps=1%,0.1%        # shortened here"
edgewise evaluate --model=long --data="$TEXTS" --caps=1%,0.1% >"$WORK/evaluation" ||
  die "\`edgewise evaluate\` ended with status $?: a text has no answer, or one above its cap"
FORMAT='    %-24s %9s  %9s  %11s  %12s  %9s\n'
say ""
printf "$FORMAT" "" right density "mean edges" "compute time" speed
setting dense
DENSE_RIGHT=$RIGHT PAIRS=${MOST//,/}
printf "$FORMAT" "every pair (dense)" "$RIGHT of $COUNT" "$DENSITY" "$EDGES" "$COMPUTE" "$SPEED"
setting "no cap"
((${MOST//,/} < PAIRS)) || die "the drawn edges are not fewer than all pairs: $MOST"
DRAWN_RIGHT=$RIGHT
printf "$FORMAT" "the edges that it draws" "$RIGHT of $COUNT" "$DENSITY" "$EDGES" "$COMPUTE" "$SPEED"
say "    Speed is dense time / this time for the same text, median."
SUMMARY="$DENSITY of the edges, $RIGHT of $COUNT right (dense: $DENSE_RIGHT), ${SPEED%x} times as fast"
if awk -v speed="${SPEED%x}" 'BEGIN { exit !(speed < 1) }'; then
  WHY="other programs use this machine"
  grep -q '^model .*/avx512/' "$WORK/evaluation" || WHY="without AVX-512, drawing edges takes longer than they save"
  conclude "Fewer edges, same answers: $SUMMARY. It is slower here: $WHY."
else
  conclude "Fewer edges, same answers, less time: $SUMMARY."
fi

title "2. Does a cap hold, and what does it cost?"
say "The same texts, with a cap on the edges of each answer:"
say ""
FORMAT='    %-24s %9s  %9s  %13s  %17s  %15s\n'
printf "$FORMAT" "" right density "cap in edges" "most edges used" "above the cap"
LEFT="$DRAWN_RIGHT of $COUNT right without a cap"
CHECKED=0 ABOVE=0
for cap in 1 0.1; do
  setting "cap $cap %"
  LIMIT=$(awk -v cap="$cap" -v pairs="$PAIRS" 'BEGIN { printf "%d", cap / 100 * pairs }')
  printf "$FORMAT" "$NAME of all pairs" "$RIGHT of $COUNT" "$DENSITY" "$(commas <<<"$LIMIT")" "$MOST" "$OVER of $ANSWERED"
  ((${MOST//,/} <= LIMIT && OVER == 0)) ||
    die "above the cap of $LIMIT edges: most edges used $MOST, $OVER of $ANSWERED answers above"
  CHECKED=$((CHECKED + ANSWERED)) ABOVE=$((ABOVE + OVER))
  LEFT+=", $RIGHT under a cap of $cap %"
done
conclude "A budget is a promise: $ABOVE of $CHECKED answers above their cap, not by one edge. What it costs:" \
  "$LEFT."

title "3. Is an answer to be trusted?"
say "Asking all $COUNT texts $SAMPLES times each, with new edges every time ..."
command_line "edgewise predict --model=long --input=$TEXTS --seed=1 --samples=$SAMPLES"
predict "$TEXTS" --samples=$SAMPLES >"$WORK/sampled"
# Texts by what their samples disagree on; the first is the one to look at.
awk '{ print NR, $5 }' "$WORK/sampled" | sort -k2,2gr >"$WORK/ranked"
read -r TEXT MOST_DISAGREEMENT <"$WORK/ranked"
OTHERS=$(awk 'NR > 1 { v[NR - 1] = $2 } END { printf "median %.7f, largest %.7f", v[int(NR / 2)], v[1] }' "$WORK/ranked")
say "Mutual information is what the samples of one text disagree on. Of text $TEXT it is $(
  printf '%.3f' "$MOST_DISAGREEMENT") nats, of the other $((COUNT - 1)):"
say "$OTHERS."
sed -n "${TEXT}p" "$TEXTS" >"$WORK/text"
ASKED=$(grep -oE '[a-z]+\?' "$WORK/text" | sort | uniq -c | sort -nr | awk 'NR == 1 { print $2 }')
NOTES=$(grep -oE '[a-z]+=[a-z]+' "$WORK/text" | sort -u | paste -sd ' ')
say ""
say "Text $TEXT asks \"$ASKED\". Its notes, each several times: $NOTES."
say ""
CORRECT=$(sed -nE 's/.*"label": ?([0-9]+).*/\1/p' "$WORK/text")
# show NAME: $WORK/answer as a line of the table; leaves ANSWER, VERDICT and P.
show() {
  local id p spread disagreement passes
  read -r ANSWER id p spread disagreement passes <"$WORK/answer"
  if ((id == CORRECT)); then VERDICT=right; else VERDICT=wrong; fi
  P=$(printf 'p = %.4f' "$p") disagreement=$(printf '%.3f nats' "$disagreement")
  if [[ $1 == *samples ]]; then P+=$(printf ' ± %.2f' "$spread"); else disagreement=-; fi
  printf "$FORMAT" "$1" "$ANSWER" "$VERDICT" "$disagreement" "$passes" "$P"
}
FORMAT='    %-24s %9s  %9s  %18s  %7s   %s\n'
printf "$FORMAT" "" answer "" "mutual information" passes probability
predict "$WORK/text" --dense >"$WORK/answer"
show "dense, one pass"
DENSE="dense attention is $VERDICT with $P"
predict "$WORK/text" >"$WORK/answer"
show "drawn edges, one sample"
sed -n "${TEXT}p" "$WORK/sampled" >"$WORK/answer"
show "drawn edges, $SAMPLES samples"
say "    Each pass takes its time: ask several times where an answer matters."
MORAL=
if [[ $DENSE == *wrong* ]]; then MORAL=" The ensemble knows what one pass does not."; fi
conclude "Ask several times to know whether to trust it: on text $TEXT $DENSE;" \
  "$SAMPLES samples say $ANSWER with $P.$MORAL"

title "A language model writes"
say "shakespeare-ssa reads characters, in sampled windows:"
command_line "edgewise generate --model=shakespeare-ssa --prompt=ROMEO: --max_new_tokens=200 --seed=1"
edgewise generate --model=shakespeare-ssa --prompt=ROMEO: --max_new_tokens=200 --seed=1 2>&1 | sed 's/^/    /'

title "What Prometheus sees"
exec 3<>"/dev/tcp/127.0.0.1/$METRICS_PORT"
printf 'GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
tr -d '\r' <&3 >"$WORK/metrics"
exec 3>&-
# For each model that was asked, sums over layers.
awk '
  function line(name, value, a, b, note) { printf "      %-9s %10s = %s / %.0f  (%s)\n", name, value, a, b, note }
  function share(name, a, b, note) { line(name, sprintf("%.2f %%", 100 * a / b), sprintf("%.0f", a), b, note) }
  !/^edgewise_/ || !match($0, /model="[^"]*"/) { next }
  { model = substr($0, RSTART + 7, RLENGTH - 8) }
  /^edgewise_attention_edges_total/ { edges[model] += $NF }
  /^edgewise_attention_pairs_total/ { pairs[model] += $NF }
  /^edgewise_edge_budget_capped_total/ { capped[model] += $NF }
  /^edgewise_items_total/ { items[model] += $NF }
  /^edgewise_requests_total/ { requests[model] += $NF }
  /^edgewise_stage_seconds_total.*"forward"/ { seconds[model] += $NF }
  END {
    for (model in pairs) {
      if (pairs[model] == 0) continue
      printf "    %s\n", model
      share("density", edges[model], pairs[model], "edgewise_attention_{edges,pairs}_total, dense answers too")
      if (items[model] > 0)
        share("capped", capped[model], items[model], "edgewise_edge_budget_capped_total / edgewise_items_total")
      if (requests[model] > 0)
        line("compute", sprintf("%.1f ms", 1000 * seconds[model] / requests[model]), sprintf("%.2f s", seconds[model]),
             requests[model], "edgewise_stage_seconds_total / edgewise_requests_total")
    }
  }' "$WORK/metrics" | commas

title "Stopping the server (SIGTERM)"
stop_server
((STATUS == 0)) || die "the server ended with status $STATUS; expected 0"
say "It finished its work and ended with status 0."

title "How to go on"
say '  ./dev serve                    # the same server, to keep, with its page at http://127.0.0.1:8000/; beside it:'
say '  build/bin/edgewise predict --model sentiment --text "a warm , funny and moving film" --samples 8'
say "  build/bin/edgewise evaluate --model long --data $TEXTS --caps 0.1%,1%,10%"
say '  pip install ./client/python    # the same from Python: README.md, "From Python"'
