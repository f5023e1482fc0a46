# Scrub of a running array: what is right is found right, also while users write; bytes that were
# changed in members' files, in every region, are found, laid to the right member, and repaired.
. "$(dirname "$0")/lib.sh"
need jq

array 5 4
# region NAME: its first byte and its length on a member.
region() {
    "$NETRAID" examine --json "${URLS[0]}" | jq -r ".[0].label.regions[] | select(.name == \"$1\") | \"\(.offset) \(.len)\""
}
# spoil MEMBER OFFSET LEN: other bytes in the middle of each block of 4 KiB.
spoil() {
    local at
    for ((at = $2; at < $2 + $3; at += 4096)); do
        printf 'spoilt' | dd of="$WORK/m$1.img" bs=1 seek=$((at + 2048)) conv=notrunc status=none
    done
}
# home: waits until nothing is in the log.
home() {
    local deadline=$((SECONDS + 30))
    until "$NETRAID" status --json "$CONTROL" | jq -e '.log.dirty_bytes == 0 and .log.used_bytes == 0' >/dev/null; do
        [ $SECONDS -lt $deadline ] || fail "the log is not brought home"
        sleep 0.1
    done
}
scrub() { "$NETRAID" scrub --json "$CONTROL" --start --rate max --wait "$@"; }
# holds JSON CONDITION WHAT
holds() { jq -e "$2" >/dev/null <<<"$1" || fail "$3: $1"; }
clean() {
    holds "$(scrub)" '.state == "complete" and .wrong == 0 and .unrepaired == 0' "${1:-a scrub finds more}"
}
# found MEMBER CONDITION: a scrub finds that, on that member alone, and repairs it all; the next one
# finds nothing.
found() {
    local end
    end=$(scrub)
    holds "$end" ".state == \"complete\" and .wrong > 0 and .repaired == .wrong and .unrepaired == 0" "not repaired"
    holds "$end" "[.members[] | select(.wrong_data + .wrong_checks + .unreadable + .wrong_pages > 0) | .index] == [$1]" "not named"
    holds "$end" ".members[$1] | $2" "counts"
    next_event engine ".event == \"repaired\" and .member == $1" >/dev/null
    next_event engine '.event == "scrubbed"' >/dev/null
    clean
}

read -r data data_len < <(region data)
read -r map map_len < <(region map)
read -r sums _ < <(region sums)
expect null "$("$NETRAID" scrub --json "$CONTROL")" "before the first scrub"

say "an array over fresh targets, and one that holds data"
clean "nothing was ever written"
load write 24MiB 1
home
clean "healthy"

say "data and parity"
spoil 1 "$data" $((1 << 20))
# Stripes that hold nothing are nobody's.
found 1 '.wrong_data > 0 and .wrong_checks > 0 and (.wrong_data + .wrong_checks) % 16 == 0'
load verify 24MiB 1

say "the stripe table and checksums"
spoil 2 "$map" 16384
spoil 2 "$sums" 65536
found 2 '.wrong_pages >= 2 and .wrong_data + .wrong_checks == 0'

say "labels and checkpoints"
for place in 0 16384 32768 49152; do spoil 3 $place 4096; done
found 3 '.wrong_pages == 3'

say "two members, as far as one row has not both"
spoil 0 "$data" 4096
spoil 1 $((data + 8192)) 4096
end=$(scrub)
holds "$end" '.wrong == 2 and .repaired == 2 and .members[0].repaired == 1 and .members[1].repaired == 1' "two"
clean
load verify 24MiB 1

say "paused, resumed, stopped; slowly"
"$NETRAID" scrub "$CONTROL" --start --rate 64KiB >/dev/null
refused 'stop it first' "$NETRAID" scrub "$CONTROL" --start
"$NETRAID" scrub "$CONTROL" --pause >/dev/null
expect paused "$("$NETRAID" scrub --json "$CONTROL" | jq -r .state)" "state"
"$NETRAID" status "$CONTROL" | grep -q 'scrub: paused' || fail "the status does not show it"
"$NETRAID" scrub "$CONTROL" --resume --rate max >/dev/null
holds "$("$NETRAID" scrub --json "$CONTROL" --wait)" '.state == "complete" and .wrong == 0' "resumed"
"$NETRAID" scrub "$CONTROL" --start --rate 64KiB >/dev/null
"$NETRAID" scrub "$CONTROL" --stop >/dev/null
expect stopped "$("$NETRAID" scrub --json "$CONTROL" | jq -r .state)" "state"
refused 'start one first' "$NETRAID" scrub "$CONTROL" --pause

say "while users write"
"$NETRAID" scrub "$CONTROL" --start --rate max >/dev/null
for seed in 2 3; do
    load write 24MiB $seed
    holds "$("$NETRAID" scrub --json "$CONTROL" --wait)" '.wrong == 0 and .unrepaired == 0' "under load"
    [ $seed = 3 ] || "$NETRAID" scrub "$CONTROL" --start --rate max >/dev/null
done
load verify 24MiB 3
home

say "what cannot be had"
# Two of each row, wherever the array has put what it holds by now.
for member in 0 1; do
    dd if=/dev/urandom of="$WORK/m$member.img" bs=1M seek=$((data >> 20)) count=$((data_len >> 20)) \
        conv=notrunc status=none
done
status=0
end=$(scrub 2>/dev/null) || status=$?
expect 1 $status "status of a scrub that could not repair all"
holds "$end" '.state == "complete" and .repaired == 0 and .unrepaired > 0' "unrepaired"
holds "$end" '.members[0].unrepaired == .members[1].unrepaired and .members[2].wrong_data + .members[3].wrong_data == 0' "unrepaired"
next_event engine ".event == \"unrepaired\" and .member == 0 and .offset >= $data and .len % 4096 == 0" >/dev/null
stop engine
