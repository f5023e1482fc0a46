# An engine's process is stopped for longer than its requests wait, as a debugger stops it, or a machine that is paused
# or moved. Its targets are well, and have answered: no member is set aside, and no user sees an error.
. "$(dirname "$0")/lib.sh"
need jq fio

# Longer than a request waits for a disk that makes no progress.
STANDSTILL_S=7
ROUNDS=3

# written: bytes that the members were given.
written() { "$NETRAID" status --json "$CONTROL" | jq '[.members[].written_bytes] | add'; }

# busy: waits until users have written more.
busy() {
    local before deadline=$((SECONDS + 20))
    before=$(written)
    until [ "$(written)" -gt $((before + 1000000)) ]; do
        [ $SECONDS -lt $deadline ] || fail "users do not go on: $("$NETRAID" status "$CONTROL")"
        sleep 0.05
    done
}

array 5 3
cd "$WORK"
fio --name=users --ioengine=nbd --uri="$NBD" --rw=randrw --bs=4k --size=24m --iodepth=16 --time_based \
    --runtime=$((ROUNDS * (STANDSTILL_S + 4))) --output="$WORK/users.txt" &
users=$!
for round in $(seq $ROUNDS); do
    busy
    kill -STOP "${PID[engine]}"
    sleep $STANDSTILL_S
    kill -CONT "${PID[engine]}"
    busy
    expect 'in_sync in_sync in_sync' "$("$NETRAID" status --json "$CONTROL" | jq -r '[.members[].state] | join(" ")')" \
        "members after standstill $round"
done
wait $users || {
    cat "$WORK/users.txt"
    fail "users saw an error"
}
expect 0 "$("$NETRAID" scrub --json "$CONTROL" --start --rate max --wait | jq '.wrong + .unrepaired')" "what is wrong"
stop engine
