# The mediator and agents of a running cluster are killed at random instants, again and again: plans
# are opened, renewed and given back all the time, a volume is written and read, a film is played at its rate,
# files are put, compared and removed. What runs goes on, what was acknowledged is there, and what
# agents have booked is what the mediator knows. Of level 5 one agent is away at a time.
. "$(dirname "$0")/cluster/lib.sh"

ROUNDS=${NETRAID_CLUSTER_KILLS:-$([ "$NIGHTLY" = 1 ] && echo 100 || echo 2)}
SEED=${NETRAID_CLUSTER_KILL_SEED:-$(date +%s)}
CHECK_EVERY=5
RANDOM=$SEED
say "seed $SEED, $ROUNDS rounds"
AGENTS=(1 2 3 4 5)
RATE=$((2 << 20))
CONTROL=unix:$WORK/control.sock

# pause MS: a random instant of so many milliseconds.
pause() { sleep "$(printf '%d.%03d' $(($1 / 1000)) $((RANDOM % $1 % 1000)))" || true; }
coin() { [ $((RANDOM % 2)) = 0 ]; }
# awaited SECONDS WHAT COMMAND...: asks until it is so.
awaited() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        [ $SECONDS -lt $deadline ] || {
            "$NETRAID" status "$CONTROL" || true
            cat "$WORK/check.json" || true
            left || true
            fail "still not so: $what"
        }
        sleep 0.05
    done
}

# left: what nobody has booked of each agent.
left() {
    local i
    for i in "${AGENTS[@]}"; do "$NETRAID" agent status --json --dir "$WORK/agent$i" | jq -c .status.left; done
}

mediator
for i in "${AGENTS[@]}"; do agent "$i"; done
awaited 60 "the mediator knows all agents" known ${#AGENTS[@]}
before=$(left)

# A volume that is written and read by a client that keeps its own record.
"$NETRAID" volume create /volume --size 64MiB --level 5 --members 5 >/dev/null
launch engine "$NETRAID" volume attach --json /volume --nbd "unix:$WORK/nbd.sock" --control "$CONTROL" \
    --term 20s
cat <&"${EVENTS[engine]}" >"$WORK/engine.log" &
nbd=$(jq -r '.exports[0].uri' <<<"${READY[engine]}")
launch hammer "$NETRAID" hammer --json "$nbd" --len 8MiB --seed "$SEED"
next_event hammer '.event == "verified"' >/dev/null

# A film that is played at its rate; who plays it opens it again and again, and once it is open, it goes on. Who
# only reads does not take a lost member back, so that each play sees one loss at most.
head -c 64MiB /dev/urandom >"$WORK/film"
"$NETRAID" put --level 5 --rate $RATE "$WORK/film" /film >/dev/null
play() {
    local number=0 status
    while [ ! -e "$WORK/stop" ]; do
        status=0
        "$NETRAID" bench stream --json --rate $RATE --seconds 2 /film >"$WORK/played" 2>"$WORK/play.text" || status=$?
        if [ $status = 0 ]; then
            jq -r 'select(.event == "end") | .used[]' "$WORK/played" >>"$WORK/plays"
            number=$((number + 1))
            say $number >"$WORK/plays.new"
            mv "$WORK/plays.new" "$WORK/plays.done"
        elif [ -s "$WORK/played" ]; then
            cat "$WORK/play.text" >"$WORK/played.failed"
            return
        else
            sleep 0.05
        fi
    done
}

# Files: what was put is what is got; what was removed is gone. A command that had no answer is given again.
insist() {
    local deadline=$((SECONDS + 60))
    until "$@" >/dev/null 2>"$WORK/insist.text"; do
        [ $SECONDS -lt $deadline ] || {
            printf '%s: %s\n' "$*" "$(tail -n 1 "$WORK/insist.text")" >>"$WORK/files.failed"
            return 1
        }
        sleep 0.05
    done
}
removed() {
    local names
    "$NETRAID" rm --force "$1" || true
    names=$("$NETRAID" ls --json /) || return 1
    ! jq -e --arg path "$1" '.entries[] | select(.path == $path)' <<<"$names"
}
files() {
    local number=0 path
    while [ ! -e "$WORK/stop" ]; do
        number=$((number + 1)) path=/file$number
        head -c $((RANDOM * 300 + 1)) "$WORK/film" | tail -c 3000000 >"$WORK/in"
        insist "$NETRAID" put --force --level 5 "$WORK/in" $path || return
        insist "$NETRAID" get --force $path "$WORK/out" || return
        cmp "$WORK/in" "$WORK/out" >>"$WORK/files.failed" || return
        insist removed $path || return
        say $number >"$WORK/files.new"
        mv "$WORK/files.new" "$WORK/files.done"
    done
}
say 0 | tee "$WORK/plays.done" >"$WORK/files.done"
play &
playing=$!
files &
filing=$!
ask() {
    while [ ! -e "$WORK/stop" ]; do
        "$NETRAID" bench mediator --json --path /film --clients 4 --rate 64KiB --term 3s --seconds 2 \
            >>"$WORK/bench" 2>"$WORK/bench.text" || {
            cat "$WORK/bench.text" >>"$WORK/bench.failed"
            return
        }
    done
}
ask &
asking=$!

# Whatever happens, nobody asks any more.
leave() {
    touch "$WORK/stop"
    wait $playing $filing $asking || true
}
at_end leave

# whole: the volume has all members in sync, a film that was opened before was played to its end, and a file that
# was begun since then was put and compared.
optimal() { [ "$(state 2>/dev/null)" = optimal ]; }
# more COUNT THAN WHAT: so many more have been done, or one has failed.
more() { [ "$(cat "$WORK/$3.done")" -ge $(($1 + $2)) ] || cat "$WORK"/*.failed 2>/dev/null | grep -q .; }
whole() {
    awaited 60 "the volume is whole" optimal
    local files plays
    files=$(cat "$WORK/files.done") plays=$(cat "$WORK/plays.done")
    awaited 60 "files are put" more 2 "$files" files
    awaited 60 "films are played" more 1 "$plays" plays
}
# going_on: nothing that ran has failed.
going_on() {
    local name
    for name in played.failed files.failed bench.failed; do
        [ ! -s "$WORK/$name" ] || fail "$name: $(cat "$WORK/$name")"
    done
    for name in "${!PID[@]}"; do [ -d "/proc/${PID[$name]}" ] || fail "$name has ended"; done
}

for ((round = 1; round <= ROUNDS; round++)); do
    lost=
    pause 400
    if coin; then
        lost=${AGENTS[RANDOM % ${#AGENTS[@]}]}
        crash "agent$lost"
        pause 200
    fi
    crash mediator
    pause 400
    if [ -z "$lost" ]; then
        lost=${AGENTS[RANDOM % ${#AGENTS[@]}]}
        crash "agent$lost"
    fi
    coin && agent "$lost" && lost=
    mediator
    pause 600
    [ -z "$lost" ] || agent "$lost"
    whole
    going_on
    if [ $((round % CHECK_EVERY)) = 0 ]; then
        awaited 20 "agents and mediator agree" agree
        say "round $round: $(cat "$WORK/files.done") files"
    fi
done

# At the end nothing is left of it all.
touch "$WORK/stop"
wait $filing $playing $asking
going_on
stop hammer
stop engine
for path in $("$NETRAID" ls --json / | jq -r '.entries[].path'); do "$NETRAID" rm --force "$path" >/dev/null; done
all_free() { [ "$(left)" = "$before" ]; }
awaited 30 "nothing is booked" all_free
awaited 10 "agents and mediator agree" agree
expect 0 "$(jq '.segments' "$WORK/check.json")" "segments that are left"
expect 0 "$(find "$WORK"/agent*/segments -type f | wc -l)" "files of segments that are left"
say "plans: $(jq -s -c '{opened: map(.opens) | add, refused: map(.refused) | add, not_released: map(.not_released) | add}' "$WORK/bench")"
say "$ROUNDS kills of the mediator and of agents; $(cat "$WORK/files.done") files put, got and removed"
say "played: $(jq -s -c 'sort | {seconds: length, least: .[0], median: .[length / 2 | floor]}' "$WORK/plays") of $RATE"
