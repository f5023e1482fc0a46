# A new array over members that are full of old bytes reads zeros, needs no resync, and a scrub
# finds nothing wrong; also when a member is lost at once.
. "$(dirname "$0")/lib.sh"
need jq qemu-io

for index in 0 1 2 3 4; do head -c 32M /dev/urandom >"$WORK/m$index.img"; done
targets 5 32MiB
mapfile -t ALL < <(members 5)
scrubbed() { "$NETRAID" scrub --json "$CONTROL" --start --rate max --wait; }
zeros() {
    local capacity
    capacity=$("$NETRAID" status --json "$CONTROL" | jq .capacity_bytes)
    qemu-io -f raw -r -c "read -P 0 0 $capacity" "$NBD" >"$WORK/io" 2>&1 && ! grep -Eqi 'fail|error' "$WORK/io" ||
        { cat "$WORK/io"; fail "level $1: not zeros"; }
}
for level in 1 5 6 10; do
    URLS=("${ALL[@]}")
    [ $level != 10 ] || URLS=("${ALL[@]:0:4}")
    # The second time round, what is there is another array.
    for round in 1 2; do
        "$NETRAID" create vol --force --level $level "${URLS[@]}" >/dev/null
        attach "${URLS[@]}"
        expect optimal "$(state)" "level $level, $round"
        expect null "$("$NETRAID" status --json "$CONTROL" | jq .progress)" "what there is to resync"
        expect 0 "$("$NETRAID" status --json "$CONTROL" | jq .log.mapped_bytes)" "what is mapped"
        zeros $level
        end=$(scrubbed)
        expect 0 "$(jq '.wrong + .unrepaired' <<<"$end")" "what a scrub finds"
        "$NETRAID" fail "$CONTROL" 1
        zeros $level
        load write 8MiB $level
        load verify 8MiB $level
        stop engine
    done
done
