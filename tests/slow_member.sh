# A target that stands still costs readers a few milliseconds: what it has is computed from the others. It is shown as slow
# meanwhile, stays a member, and is read from again afterwards. Writers wait for it once, then go on without it, and it catches up.
# Alone: it judges how long reads and writes take.
. "$(dirname "$0")/lib.sh"
need jq fio

STOPPED_S=3

# readers SECONDS NAME: random reads for so long.
readers() {
    fio --name=readers --ioengine=nbd --uri="$NBD" --rw=randread --bs=4k --size=64m --iodepth=8 --time_based \
        --runtime="$1" --output-format=json --output="$WORK/$2.json"
}

# writers SECONDS NAME: random writes for so long, verified.
writers() {
    fio --name=writers --ioengine=nbd --uri="$NBD" --rw=randwrite --bs=4k --size=24m --iodepth=8 --time_based \
        --runtime="$1" --verify=crc32c --verify_backlog=64 --output-format=json --output="$WORK/$2.json"
}

# longest NAME read|write: how many milliseconds the longest one took.
longest() { jq ".jobs[0].$2.clat_ns.max / 1000000 | ceil" "$WORK/$1.json"; }

# is_slow INDEX
is_slow() { "$NETRAID" status --json "$CONTROL" | jq -e ".members[$1].slow" >/dev/null; }
is_fast() { ! is_slow "$1"; }

array 5 5
cd "$WORK"
load write 64MiB 3
load verify 64MiB 3
readers 4 control

readers 8 stopped &
users=$!
sleep 2
kill -STOP "${PID[m1]}"
await 30 is_slow 1
expect "optimal in_sync" "$(state) $(member_state 1)" "array and member while it is slow"
sleep $STOPPED_S
kill -CONT "${PID[m1]}"
wait $users || fail "readers saw an error"
say "the longest read took $(longest control read) ms without, $(longest stopped read) ms with a member that stood still for $STOPPED_S s"
# What was under way when it stopped waits for its deadline, half a second at most; nothing else waits.
[ "$(longest stopped read)" -le $(($(longest control read) + 550)) ] || fail "readers waited for the member"
await 30 is_fast 1
expect 5 "$("$NETRAID" status --json "$CONTROL" | jq '[.members[] | select(.state == "in_sync")] | length')" "members in sync"
[ "$("$NETRAID" status --json "$CONTROL" | jq '.members[1].late')" -gt 0 ] || fail "no read counts as late"

# Reads go to it again.
before=$("$NETRAID" status --json "$CONTROL" | jq '.members[1].reads')
load verify 64MiB 3
[ "$("$NETRAID" status --json "$CONTROL" | jq '.members[1].reads')" -gt "$before" ] || fail "it is not read from"

writers 4 control
writers 8 stopped &
users=$!
sleep 2
kill -STOP "${PID[m2]}"
await 30 is_in_state 2 faulty
sleep $STOPPED_S
kill -CONT "${PID[m2]}"
wait $users || fail "writers saw an error"
say "the longest write took $(longest control write) ms without, $(longest stopped write) ms with a member that stood still"
[ "$(longest stopped write)" -le $(($(longest control write) + 1500)) ] || fail "writers waited for the member"
await 30 is_in_state 2 in_sync
expect 0 "$("$NETRAID" scrub --json "$CONTROL" --start --rate max --wait | jq '.wrong + .unrepaired')" "what is wrong"
stop engine
