# A member that serves is replaced: it is copied, and serves until the copy is whole. So another member may die meanwhile, and
# so may it itself, or the device that it is copied to.
. "$(dirname "$0")/lib.sh"
need jq fio

# status JQ: of the array.
status() { "$NETRAID" status --json "$CONTROL" | jq -r "$1"; }
is_so() { [ "$(status "$1")" = "$2" ]; }
# users SECONDS NAME: random writes and reads for so long, verified.
users() {
    fio --name="$2" --ioengine=nbd --uri="$NBD" --rw=randrw --bs=4k --offset=64m --size=32m --iodepth=8 --time_based \
        --runtime="$1" --verify=crc32c --verify_backlog=64 --output-format=json --output="$WORK/$2.json"
}
# replaced_by NAME: a device of that name, slow enough that something may happen meanwhile, is to replace member 1.
replaced_by() {
    target "$1" 128MiB --filter rate=8MiB/s
    "$NETRAID" replace "$CONTROL" 1 "${URI[$1]}" >/dev/null
    expect "optimal in_sync" "$(state) $(member_state 1)" "array and member that is copied to $1"
    expect "${URI[$1]}" "$(status '.members[1].successor')" "where it is copied to"
    await 30 is_so '.progress | .kind == "copy" and .member == 1 and .done_bytes > 0' true
}

array 5 4 128MiB
load write 64MiB 3

say "another member dies"
users 20 beside &
users=$!
replaced_by first
refused "is being prepared for the place" "$NETRAID" replace "$CONTROL" 1 "${URI[first]}"
crash m2
await 30 is_in_state 2 faulty
expect in_sync "$(member_state 1)" "the member that is copied, after another one has died"
load verify 64MiB 3
# It is not set aside for its copy while another one is away.
await 90 grep -q "the copy of member 1 is whole" "$WORK/engine.err"
expect "in_sync ${URI[m1]} ${URI[first]}" "$(status '.members[1] | "\(.state) \(.url) \(.successor)"')" "the member while its copy waits"
target m5 128MiB
"$NETRAID" replace --wait "$CONTROL" 2 "${URI[m5]}" >/dev/null
await 30 is_so '.members[1].url' "${URI[first]}"
await 30 is_so '.state' optimal
expect "in_sync null 0" "$(status '.members[1] | "\(.state) \(.successor) \(.errors)"')" "the new member"
wait $users || fail "users saw an error while a member was copied"
load verify 64MiB 3
# The old one is not asked for anything any more.
crash m1
load write 8MiB 4
load verify 8MiB 4
load write 64MiB 5
# What was written to the copy carries the array.
"$NETRAID" fail "$CONTROL" 0 >/dev/null
load verify 64MiB 5
"$NETRAID" rebuild --wait "$CONTROL" 0 >/dev/null

say "the device that it is copied to dies"
users 12 new &
users=$!
replaced_by second
"$NETRAID" replace --wait "$CONTROL" 1 "${URI[second]}" >/dev/null 2>&1 && fail "a second replacement of one member was taken"
crash second
await 30 is_so '.members[1].successor' null
expect "in_sync ${URI[first]}" "$(status '.members[1] | "\(.state) \(.url)"')" "the member that stays"
grep -q "the copy of member 1 to ${URI[second]} has ended" "$WORK/engine.err" || fail "nothing is told of the copy's end"
wait $users || fail "users saw an error of a device that is no member"
load verify 64MiB 5

say "the device that it is copied to hangs"
users 12 hung &
users=$!
replaced_by hung
kill -STOP "${PID[hung]}"
await 15 is_so '.members[1].successor' null
grep -q "the copy of member 1 to ${URI[hung]} has ended.*replace the member again" "$WORK/engine.err" || fail "nothing is told of the copy's end"
wait $users || fail "users saw an error of a device that is no member"
kill -CONT "${PID[hung]}"
expect optimal "$(state)" "the array beside a device that hung"
load verify 64MiB 5

say "it is not wanted any more"
replaced_by third
"$NETRAID" fail "$CONTROL" "${URI[third]}" >/dev/null
expect "in_sync ${URI[first]} null" "$(status '.members[1] | "\(.state) \(.url) \(.successor)"')" "the member that stays"

say "it dies itself"
users 20 old &
users=$!
replaced_by fourth
crash first
await 30 is_so '.members[1].url' "${URI[fourth]}"
await 90 is_so '.state' optimal
wait $users || fail "users saw an error"
load verify 64MiB 5

say "the engine dies, and is attached with the members of before"
target fifth 128MiB --filter rate=8MiB/s
"$NETRAID" replace "$CONTROL" 1 "${URI[fifth]}" >/dev/null
await 30 is_so '.progress | .kind == "copy" and .done_bytes > 0' true
crash engine
attach "${URI[m0]}" "${URI[fourth]}" "${URI[m5]}" "${URI[m3]}"
await 30 is_so '.state' optimal
load verify 64MiB 5
"$NETRAID" replace --force --wait "$CONTROL" 1 "${URI[fifth]}" >/dev/null
expect "optimal ${URI[fifth]}" "$(status '"\(.state) \(.members[1].url)"')" "after another attempt"
expect 0 "$("$NETRAID" scrub --json "$CONTROL" --start --rate max --wait | jq '.wrong + .unrepaired')" "what is wrong"
stop engine
attach "${URI[m0]}" "${URI[fifth]}" "${URI[m5]}" "${URI[m3]}"
expect optimal "$(state)" "state when it is attached with the new member"
load verify 64MiB 5
