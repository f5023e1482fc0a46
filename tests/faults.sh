# What went wrong with a member is counted, and still counted when the array is attached again; the counters begin anew by
# command, and with another device in the member's place.
. "$(dirname "$0")/lib.sh"
need jq

# status JQ: of the array. faults INDEX: a member's counters.
status() { "$NETRAID" status --json "$CONTROL" | jq -r "$1"; }
faults() { status ".members[$1] | \"\(.wrong_blocks) \(.unreadable_blocks) \(.lost_writes)\""; }
home() {
    local deadline=$((SECONDS + 30))
    until [ "$(status '.log.dirty_bytes + .log.used_bytes')" = 0 ]; do
        [ $SECONDS -lt $deadline ] || fail "the log is not brought home"
        sleep 0.1
    done
}
# becomes WANTED INDEX WHAT: the counters are that, now or soon: they are read when the member is first looked at.
becomes() {
    local deadline=$((SECONDS + 15))
    until [ "$(faults "$2")" = "$1" ]; do
        [ $SECONDS -lt $deadline ] || fail "$3: expected '$1', found '$(faults "$2")'"
        sleep 0.1
    done
}

array 5 4
target spare
data=$("$NETRAID" examine --json "${URLS[0]}" | jq '.[0].label.regions[] | select(.name == "data") | .offset')
load write 24MiB 1
home
for index in 0 1 2 3; do expect "0 0 0" "$(faults $index)" "counters of member $index, with which nothing is wrong"; done

say "wrong bytes: ten blocks, which are read, repaired and counted"
for chunk in 1 4 7 10 13; do
    head -c 8192 /dev/urandom | dd of="$WORK/m1.img" bs=4K seek=$(((data + chunk * 65536) / 4096)) conv=notrunc status=none
done
"$NETRAID" scrub "$CONTROL" --start --rate max --wait >/dev/null
expect "10 0 0" "$(faults 1)" "counters of the member with wrong bytes"
"$NETRAID" status "$CONTROL" | grep ' 10 wrong blocks' || fail "the status for people does not show it"
for index in 0 2 3; do expect "0 0 0" "$(faults $index)" "counters of member $index"; done

say "wrong bytes that a read finds"
for chunk in 2 3 5; do
    head -c 65536 /dev/urandom | dd of="$WORK/m2.img" bs=4K seek=$(((data + chunk * 65536) / 4096)) conv=notrunc status=none
done
load verify 24MiB 1
found=$(status '.members[2].wrong_blocks')
[ "$found" -ge 16 ] || fail "$found blocks are counted that a read found wrong"
# What is parity there nobody has read.
"$NETRAID" scrub "$CONTROL" --start --rate max --wait >/dev/null
becomes "48 0 0" 2 "counters after a scrub"

say "after it was closed, and after a crash"
stop engine
attach "${URLS[@]}"
becomes "10 0 0" 1 "counters after the array was closed"
becomes "48 0 0" 2 "counters after the array was closed"
expect "0 0 0" "$(faults 3)" "counters of a member with which nothing is wrong"
head -c 4096 /dev/urandom | dd of="$WORK/m1.img" bs=4K seek=$(((data + 65536) / 4096)) conv=notrunc status=none
"$NETRAID" scrub "$CONTROL" --start --rate max --wait >/dev/null
expect "11 0 0" "$(faults 1)" "counters after one more"
# They are written each ten seconds at most.
sleep 12
crash engine
attach "${URLS[@]}"
becomes "11 0 0" 1 "counters after a crash"

say "a member that loses its session"
before=$(status '.members[3].reconnects')
crash m3
target m3
deadline=$((SECONDS + 30))
until [ "$(status '.members[3].reconnects')" -gt "$before" ] && [ "$(state)" = optimal ]; do
    [ $SECONDS -lt $deadline ] || fail "no reconnect is counted: $("$NETRAID" status "$CONTROL")"
    sleep 0.2
done

say "another device in its place, and a command"
"$NETRAID" replace "$CONTROL" 1 "${URI[spare]}" --wait >/dev/null
becomes "0 0 0" 1 "counters of the new member"
refused 'no member' "$NETRAID" clear-errors "$CONTROL" 9
"$NETRAID" clear-errors "$CONTROL" 2 >/dev/null
expect "0 0 0" "$(faults 2)" "counters that were cleared"
[ "$(status '.members[3].reconnects')" -gt 0 ] || fail "the counters of another member were cleared"
stop engine
URLS[1]=${URI[spare]}
attach "${URLS[@]}"
sleep 3
for index in 1 2; do expect "0 0 0" "$(faults $index)" "counters of member $index after it was attached again"; done
"$NETRAID" clear-errors "$CONTROL" >/dev/null
expect 0 "$(status '[.members[] | .reconnects + .errors + .late] | add')" "counters of all members"
stop engine
