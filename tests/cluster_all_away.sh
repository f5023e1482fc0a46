# Agents of a volume are killed and started again faster than its level survives, under load: two within a second of each
# other, then all. Requests wait, the volume goes on by itself, and no user sees an error. Agents that are away for longer
# than --pause end it with one clear error, and everything is there at the next attach. A volume that is removed by force
# while it waits ends with that error.
. "$(dirname "$0")/cluster/lib.sh"
need jq fio

ROUNDS=$([ "$NIGHTLY" = 1 ] && echo 4 || echo 1)
AGENTS=(1 2 3 4)

# serve NAME ARG...: attaches the volume; sets NBD and CONTROL.
serve() {
    local name=$1
    shift
    CONTROL=unix:$WORK/$name.control
    again "$name" "$NETRAID" volume attach --json /v --nbd "unix:$WORK/$name.nbd" --control "$CONTROL" "$@"
    NBD=$(jq -r '.exports[0].uri' <<<"${READY[$name]}")
}

# written: bytes that the members were given since the volume was opened, or went on.
written() { "$NETRAID" status --json "$CONTROL" | jq '[.members[].written_bytes] | add'; }
# busy: waits until users have written more.
busy() {
    local before deadline=$((SECONDS + 60))
    before=$(written)
    until [ "$(written)" -gt $((before + 1000000)) ]; do
        [ $SECONDS -lt $deadline ] || fail "users do not go on: $("$NETRAID" status "$CONTROL")"
        sleep 0.05
    done
}
# volume_state STATE: waits until the volume is in it.
volume_state() {
    local deadline=$((SECONDS + 60))
    until [ "$(state)" = "$1" ]; do
        [ $SECONDS -lt $deadline ] || fail "the volume is not $1: $("$NETRAID" status "$CONTROL")"
        sleep 0.05
    done
}
# failure PATTERN: what the volume says of why it does not serve.
failure() {
    "$NETRAID" status --json "$CONTROL" | jq -e --arg pattern "$1" '.failure | test($pattern)' >/dev/null ||
        fail "does not say '$1': $("$NETRAID" status --json "$CONTROL")"
}

crash_all() { crash agent1 agent2 agent3 agent4; }
start() {
    local i
    for i in "$@"; do agent "$i"; done
}
# Each is there again before the next one goes, and has not taken part again: an upgrade in a hurry.
two_one_after_another() {
    crash agent1
    start 1
    crash agent2
    start 2
}
two_at_once() {
    crash agent3 agent4
    volume_state paused
    start 3 4
}
all() {
    crash_all
    volume_state paused
    start "${AGENTS[@]}"
}

mediator
start "${AGENTS[@]}"
soon known 4
"$NETRAID" volume create /v --size 64MiB --level 5 --members 4 >/dev/null
serve engine
segments() { "$NETRAID" stat --json /v | jq -c '[.stored.members[].segment]'; }
before=$(segments)
cd "$WORK"
for how in two_one_after_another two_at_once all; do
    fio --name=users --ioengine=nbd --uri="$NBD" --rw=randwrite --bs=4k --size=24m --iodepth=16 --time_based \
        --runtime=$((ROUNDS * 12)) --verify=crc32c --verify_backlog=64 --fsync=200 --output="$WORK/users.txt" &
    users=$!
    for _ in $(seq "$ROUNDS"); do
        busy
        $how
        busy
    done
    wait $users || {
        cat "$WORK/users.txt"
        fail "users saw an error ($how)"
    }
    volume_state optimal
done
expect 0 "$("$NETRAID" scrub --json "$CONTROL" --start --rate max --wait | jq '.wrong + .unrepaired')" "what is wrong"
# Nobody was away for long.
expect "$before" "$(segments)" "segments"

# While it waits, nobody's place is taken by another, whatever --replace-after says: each may be needed.
load write 24MiB 7
stop engine
serve engine --replace-after 1s
crash_all
load verify 24MiB 7 &
reader=$!
volume_state paused
failure 'cannot serve without members'
# Longer than members may be away else.
sleep 2
start "${AGENTS[@]}"
wait $reader || fail "a read that waited was wrong"
volume_state optimal
expect "$before" "$(segments)" "segments after a pause"
stop engine

# Beyond the limit there is one error, which names who is away; everything that was flushed is there afterwards.
serve engine --pause 2s
load write 24MiB 8
crash_all
refused 'Input/output error' "$NETRAID" load verify "$NBD" --len 24MiB --seed 8
expect failed "$(state)" "state after the pause"
failure 'cannot serve without members'
crash engine
start "${AGENTS[@]}"
soon known 4
serve engine --take-over
load verify 24MiB 8

# A volume that its client has no more, here since it is removed, does not wait for its agents until its time is over: the
# client is told so, and its users get errors.
crash_all
"$NETRAID" load verify "$NBD" --len 24MiB --seed 8 >/dev/null 2>&1 &
reader=$!
volume_state paused
"$NETRAID" volume rm --force /v
wait $reader && fail "what is gone was read"
child=${PID[engine]} status=0
unset "PID[engine]"
await_end "$child" 30 || fail "the engine goes on with what is gone"
wait "$child" || status=$?
expect 1 "$status" "status of who lost the volume"
grep -q '/v: is no longer open' "$WORK/engine.err" || fail "does not say why: $(tail -n 3 "$WORK/engine.err")"
