# All members are away at once for a moment, under load: their processes are killed and come back, at once and one after
# another, or stand still. Requests wait, the array goes on by itself, and no user sees an error. What is away for longer
# than --pause fails with one clear error, and everything is there at the next attach.
. "$(dirname "$0")/lib.sh"
need jq fio

ROUNDS=$([ "$NIGHTLY" = 1 ] && echo 4 || echo 1)
STILL_S=$([ "$NIGHTLY" = 1 ] && echo 30 || echo 7)

# written: bytes that the members were given since the array was opened, or went on.
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

# array_state STATE: waits until the array is in it.
array_state() {
    local deadline=$((SECONDS + 60))
    until [ "$(state)" = "$1" ]; do
        [ $SECONDS -lt $deadline ] || fail "the array is not $1: $("$NETRAID" status "$CONTROL")"
        sleep 0.05
    done
}

restart_at_once() {
    local index
    for index in 0 1 2; do crash m$index; done
    targets 3
}

restart_one_after_another() {
    local index
    for index in 0 1 2; do
        crash m$index
        target m$index
        sleep 0.2
    done
}

stand_still() {
    local index
    for index in 0 1 2; do kill -STOP "${PID[m$index]}"; done
    sleep "$STILL_S"
    for index in 0 1 2; do kill -CONT "${PID[m$index]}"; done
}

array 5 3
cd "$WORK"
for how in restart_at_once restart_one_after_another stand_still; do
    fio --name=users --ioengine=nbd --uri="$NBD" --rw=randwrite --bs=4k --size=24m --iodepth=16 --time_based \
        --runtime=$((ROUNDS * (STILL_S + 8))) --verify=crc32c --verify_backlog=64 --fsync=200 \
        --output="$WORK/users.txt" &
    users=$!
    for round in $(seq $ROUNDS); do
        busy
        $how
        busy
    done
    wait $users || {
        cat "$WORK/users.txt"
        fail "users saw an error while all members were away ($how)"
    }
    array_state optimal
done
expect 0 "$("$NETRAID" scrub --json "$CONTROL" --start --rate max --wait | jq '.wrong + .unrepaired')" "what is wrong"

# While they are away status says so, and why.
load write 24MiB 7
for index in 0 1 2; do crash m$index; done
load verify 24MiB 7 &
reader=$!
array_state paused
"$NETRAID" status --json "$CONTROL" | jq -e '.failure | contains("cannot serve without members")' >/dev/null ||
    fail "status does not say why: $("$NETRAID" status --json "$CONTROL")"
targets 3
wait $reader || fail "a read that waited was wrong"
array_state optimal
stop engine

# Beyond the limit there is one error, which names who is away; everything that was flushed is there afterwards.
attach --pause 2s "${URLS[@]}"
load write 24MiB 8
for index in 0 1 2; do crash m$index; done
refused 'Input/output error' "$NETRAID" load verify "$NBD" --len 24MiB --seed 8
expect failed "$(state)" "state after the pause"
"$NETRAID" status --json "$CONTROL" | jq -e '.failure | contains("cannot serve without members")' >/dev/null ||
    fail "status does not say why it failed: $("$NETRAID" status --json "$CONTROL")"
crash engine
targets 3
attach "${URLS[@]}"
load verify 24MiB 8
stop engine

# An array that is told to stop while all are away waits for one attempt, and no longer.
attach "${URLS[@]}"
load write 24MiB 9
for index in 0 1 2; do crash m$index; done
"$NETRAID" load verify "$NBD" --len 24MiB --seed 9 >/dev/null 2>&1 &
reader=$!
array_state paused
kill "${PID[engine]}"
await_end "${PID[engine]}" 10 || fail "the engine goes on after SIGTERM while all members are away"
wait "${PID[engine]}" && fail "an array that was not closed counts as closed"
unset "PID[engine]"
wait $reader && fail "a read succeeded without members"
targets 3
attach "${URLS[@]}"
load verify 24MiB 9
stop engine
