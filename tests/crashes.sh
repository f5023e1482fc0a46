# The engine is killed at random instants under load, in half of the rounds with a member; then all
# targets at once. A client of its own keeps the record: after each restart every block is what was
# acknowledged last, or what was under way.
. "$(dirname "$0")/lib.sh"
need jq

ROUNDS=${NETRAID_CRASHES:-$([ "$NIGHTLY" = 1 ] && echo 25 || echo 2)}
LEVELS=${NETRAID_CRASH_LEVELS:-$([ "$NIGHTLY" = 1 ] && echo 5:4 6:5 1:3 10:4 || echo 5:4 6:5)}
SEED=${NETRAID_CRASH_SEED:-$(date +%s)}
RANDOM=$SEED
say "seed $SEED"

# pause: a random instant.
pause() { sleep "0.$(printf %03d $((RANDOM % 600)))"; }
coin() { [ $((RANDOM % 2)) = 0 ]; }
open_array() {
    rm -f "$WORK/nbd.sock"
    CONTROL=unix:$WORK/control.sock
    launch engine "$NETRAID" attach --degraded --json --nbd "unix:$WORK/nbd.sock" --control "$CONTROL" "${URLS[@]}"
}
# verified: the client has read everything since the last loss, and it was right.
verified() { next_event client '.event == "verified"'; }
# recorded AWAY HERE: the label of member HERE no longer calls member AWAY in sync.
recorded() {
    local label
    label=$("$NETRAID" examine "${URLS[$2]}")
    [[ $label == *"member $1: "* ]] || fail "no label: $label"
    [[ $label != *"member $1: in_sync"* ]]
}
# whole: every member is in sync again.
whole() {
    local deadline=$((SECONDS + 60))
    until [ "$(state)" = optimal ]; do
        [ $SECONDS -lt $deadline ] || fail "members do not come back: $("$NETRAID" status "$CONTROL")"
        sleep 0.1
    done
}

for shape in $LEVELS; do
    level=${shape%:*} count=${shape#*:} away=
    targets "$count" 64MiB
    mapfile -t URLS < <(members "$count")
    log=$((1 << RANDOM % 5))MiB
    say "level $level of $count, a log of $log"
    "$NETRAID" create vol --force --level "$level" --log-size "$log" "${URLS[@]}" >/dev/null
    open_array
    launch client "$NETRAID" hammer --json "nbd+unix:///vol?socket=$WORK/nbd.sock" --len 24MiB --seed "$RANDOM"
    verified
    for ((round = 0; round < ROUNDS; round++)); do
        pause
        if [ -n "$away" ]; then
            # Whether it has caught up or not, the engine may die.
            coin && target "m$away" 64MiB && away=
        elif coin && [ "$(state)" = optimal ]; then
            away=$((RANDOM % count))
            crash "m$away"
            # Without one that could serve alone, mirrors open only when their labels say that it was away.
            [ "$level" != 1 ] || until recorded $away $(((away + 1) % count)); do sleep 0.05; done
        fi
        coin && pause
        crash engine
        open_array
        verified
    done
    [ -z "$away" ] || target "m$away" 64MiB
    for ((round = 0; round < (ROUNDS + 1) / 2; round++)); do
        pause
        crash $(seq -f 'm%g' 0 $((count - 1)))
        coin && pause
        crash engine
        targets "$count" 64MiB
        open_array
        verified
    done
    # Nothing is left that only all members together could give.
    whole
    crash m1
    pause
    stop client
    stop engine
    for ((index = 0; index < count; index++)); do
        [ -z "${PID[m$index]:-}" ] || stop "m$index" 2>/dev/null
        rm -f "$WORK/m$index.img"
        unset "URI[m$index]"
    done
done
