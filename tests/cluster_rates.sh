# Agents measure what their links, 200 Mbit/s each, carry. Eight clients ask for a rate of which that holds
# five while an agent is lost: five get it, three an offer. The five keep it beside a client that takes all it can get, then
# without one of the agents, then while their members are rebuilt on another.
# Alone: rates are measured that the processors have to keep up with.
. "$(dirname "$0")/links/lib.sh"

KEPT=1           # per cent of what was measured for rebuilds of those who were promised nothing
RATE=13200000    # what each client asks for
SECONDS_EACH=44
LOSS_AT=14       # second in which an agent is lost
REPLACE_AFTER=12 # seconds until another takes its place

# What memory does is no matter here: a small file system, so that measuring it is soon over.
for i in 1 2 3 4 5 6; do
    host $i
    mkdir "$WORK/agent$i"
    mount -t tmpfs -o size=1G none "$WORK/agent$i"
    at_end umount -l "$WORK/agent$i"
    launch "peer$i" "$NETRAID" agent calibrate --json --serve "$NET.100:$((7500 + i))"
    ip netns exec "$P-$i" "$NETRAID" agent calibrate --json --dir "$WORK/agent$i" \
        --network "$NET.100:$((7500 + i))" >"$WORK/measured$i" 2>"$WORK/measured$i.err" &
    PID[measure$i]=$!
done
for i in 1 2 3 4 5 6; do
    wait "${PID[measure$i]}" || fail "agent $i was not measured"
    unset "PID[measure$i]"
    crash "peer$i"
done
say "measured: $(jq -s -c 'map(.network)' "$WORK"/measured[1-6])"

mediator
for i in 1 2 3 4 5; do agent $i --keep-for-rebuild $KEPT; done
known 5

head -c 64MiB /dev/urandom >"$WORK/file"
for i in $(seq 9); do "$NETRAID" put -p --json --rate $RATE --members 5 "$WORK/file" "/s/$i" >/dev/null; done
expect 5 "$("$NETRAID" stat --json /s/1 | jq '.stored.members | length')" "members"
# The spare comes when all is placed.
agent 6 --keep-for-rebuild $KEPT
known 6

# stream I [OPTION...]: a client that says what it got at its end.
declare -A STREAM=()
stream() {
    local i=$1
    shift
    "$NETRAID" bench stream --json --seconds $SECONDS_EACH "$@" "/s/$i" \
        >"$WORK/stream$i" 2>"$WORK/stream$i.err" &
    STREAM[$i]=$!
}
# How many of them fit, by what one of them takes.
of_agents() { # jq EXPRESSION on each status
    "$NETRAID" mediator agents --json --access "$ADMIN" |
        jq -c "[.agents[] | select(.segments > 0) | .status | $1]"
}
until_left() { # jq CONDITION on [before, now]
    for _ in $(seq 300); do
        now=$(of_agents .left.network)
        jq -e -n --argjson before "$before" --argjson now "$now" "$1" >/dev/null && return
        sleep 0.1
    done
    fail "agents have $now left, before $before: not $1"
}
before=$(of_agents '.capacity.network - .kept.network')
until_left '$now == $before'
stream 1 --rate $RATE
until_left '[$before, $now] | transpose | all(.[0] > .[1])'
expected=$(jq -n --argjson before "$before" --argjson now "$now" \
    '[$before, $now] | transpose | map(.[0] / (.[0] - .[1]) | floor) | min')
kill "${STREAM[1]}"
wait "${STREAM[1]}" && fail "a stream ended well that was interrupted"
until_left '$now == $before'
say "left on each: $before; so many fit: $expected"
expect 5 "$expected" "streams that fit"

for i in $(seq 8); do
    write=()
    [ $((i % 2)) = 0 ] || write=(--write --replace-after ${REPLACE_AFTER}s)
    stream "$i" --rate $RATE "${write[@]}"
done
# Each is there or was refused.
admitted=() refused=()
for i in $(seq 8); do
    for _ in $(seq 300); do
        [ -s "$WORK/stream$i" ] || [ ! -d "/proc/${STREAM[$i]}" ] && break
        sleep 0.05
    done
    if [ -s "$WORK/stream$i" ]; then admitted+=("$i"); else refused+=("$i"); fi
done
began=$SECONDS
say "admitted: ${admitted[*]}; refused: ${refused[*]}"
expect "$expected" ${#admitted[@]} "streams admitted"
offers=()
for i in "${refused[@]}"; do
    wait "${STREAM[$i]}" && fail "stream $i ended well"
    offer=$(sed -n 's/.*--rate \([0-9]*\).*/\1/p' "$WORK/stream$i.err")
    [ -n "$offer" ] || fail "no offer to $i: $(cat "$WORK/stream$i.err")"
    offers+=("$offer")
done
say "offers: ${offers[*]}"
# One of them takes it, and may have no more.
taker=${refused[0]} offer=${offers[0]}
stream "$taker" --rate "$offer" --limit "$offer"
# And one takes what it can get.
stream 9 --depth 32
while [ $((SECONDS - began)) -lt $LOSS_AT ]; do sleep 0.1; done
kill -KILL "${PID[agent3]}"
wait "${PID[agent3]}" || true
unset "PID[agent3]"
ends=ok
for i in "${admitted[@]}" "$taker" 9; do
    wait "${STREAM[$i]}" || { say "stream $i: $(tail -n 1 "$WORK/stream$i.err")"; ends=failed; }
done

# keeps I FROM TO NAME: whether a stream had its rate in these seconds.
keeps() {
    jq -s -r --argjson from "$2" --argjson to "$3" --argjson rate $RATE --arg what "stream $1, $4" '
        .[1].used[$from:$to] | (add / length / $rate) as $mean | (min / $rate) as $least
        | "\($what): mean \($mean * 100 | round)% of its rate, least \($least * 100 | round)%",
          if $mean >= 0.95 and $least >= 0.8 then "ok" else "NOT KEPT: \(.)" end' "$WORK/stream$1"
}
verdict=ok
for i in "${admitted[@]}"; do
    for window in "2 12 beside_a_greedy_one" "15 25 an_agent_lost" "30 42 during_the_rebuild"; do
        # shellcheck disable=SC2086
        out=$(keeps "$i" $window)
        say "$out"
        grep -q '^ok' <<<"$out" || verdict=failed
    done
done
most=$(jq -s --argjson limit "$offer" '.[1].moved[1:-1] | add / length / $limit' "$WORK/stream$taker")
say "who took the offer had $most of its limit"
jq -e -n "$most <= 1.05" >/dev/null || fail "a limit was exceeded"
say "the greedy one had $(jq -s -c '.[1].mean' "$WORK/stream9") bytes a second"
[ $ends = ok ] || fail "a stream failed"
[ $verdict = ok ] || fail "a rate was not kept"
"$NETRAID" mediator check --json --access "$ADMIN" | jq -c .
