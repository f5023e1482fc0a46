# The log on one member is spoiled under an array that has writes in it that are nowhere else, while
# the engine is held still so that nothing comes home meanwhile; then the engine is killed. What was
# acknowledged is read, and the member is named.
. "$(dirname "$0")/lib.sh"
need jq

targets 4
mapfile -t URLS < <(members 4)
"$NETRAID" create vol --level 5 "${URLS[@]}" >/dev/null
CONTROL=unix:$WORK/control.sock
serve() {
    rm -f "$WORK/nbd.sock"
    launch engine "$NETRAID" attach --json --nbd "unix:$WORK/nbd.sock" --control "$CONTROL" "${URLS[@]}"
}
# is_named MEMBER: whether the engine has said that the member's copies were wrong.
is_named() {
    local line
    while IFS= read -r -t 1 -u "${EVENTS[engine]}" line; do
        if jq -e ".event == \"notice\" and (.text | startswith(\"member $1 had wrong or no copies\"))" \
            >/dev/null <<<"$line"; then
            say "$line"
            return 0
        fi
    done
    return 1
}
read -r log log_len < <("$NETRAID" examine --json "${URLS[0]}" |
    jq -r '.[0].label.regions[] | select(.name == "log") | "\(.offset) \(.len)"')
head -c "$log_len" /dev/urandom >"$WORK/noise"
serve
launch client "$NETRAID" hammer --json "nbd+unix:///vol?socket=$WORK/nbd.sock" --len 24MiB --seed 1
next_event client '.event == "verified"' >/dev/null
for member in 0 1 2 3; do
    named=0
    # A segment of the log has copies on two of the four members, so every other try finds nothing to
    # say of this one; and once in a while all of it comes home before the engine is held.
    for try in {1..25}; do
        until "$NETRAID" status --json "$CONTROL" | jq -e '.log.dirty_bytes > 65536' >/dev/null; do sleep 0.02; done
        kill -STOP "${PID[engine]}"
        dd if="$WORK/noise" of="$WORK/m$member.img" bs=1M seek="$log" oflag=seek_bytes conv=notrunc status=none
        crash engine
        serve
        next_event client '.event == "verified"' >/dev/null
        if is_named $member; then
            named=1
            break
        fi
    done
    [ $named = 1 ] || fail "nobody said that member $member had wrong copies of the log"
done
stop client
expect 0 "$("$NETRAID" scrub --json "$CONTROL" --start --rate max --wait | jq '.wrong + .unrepaired')" "what is wrong after that"
stop engine
