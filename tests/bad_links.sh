# Members on links of their own: all links go down at once; one member flaps, has a hundredth of its rate, or loses 2% of its
# packets. Users see no error, what they wrote is verified, members have documented states only, and all are in sync in the end.
# Alone: its namespace of mounts would keep file systems of others mounted.
. "$(dirname "$0")/links/lib.sh"
need fio nft

# Seconds of load for each fault, and of all links down.
LOAD_S=$([ "$NIGHTLY" = 1 ] && echo 120 || echo 14)
DOWN_S=$([ "$NIGHTLY" = 1 ] && echo 30 || echo 6)
MEMBERS=5

# member I: a target on the link of host I.
member() {
    launch "m$1" ip netns exec "$P-$1" "$NETRAID" target --json --listen "$NET.$1:3260" \
        --iqn "iqn.2026-01.test:m$1" --lun "ram:96MiB" --insecure
    URI[m$1]=$(jq -r '.luns[0].uri' <<<"${READY[m$1]}")
}

# sample: writes the states that are shown, until it is ended.
sample() {
    while :; do
        "$NETRAID" status --json "$CONTROL" | jq -r '"array \(.state)", (.members[] | "member \(.state)")'
        sleep 0.2
    done
}

# while_users FAULT: users write, read and verify while a fault lasts, and see no error.
while_users() {
    local users sampler
    fio --name=users --ioengine=nbd --uri="$NBD" --rw=randrw --bs=4k --size=16m --iodepth=16 --time_based \
        --runtime="$LOAD_S" --verify=crc32c --verify_backlog=64 --output-format=json --output="$WORK/users.json" &
    users=$!
    sample >"$WORK/states" &
    sampler=$!
    sleep 2
    "$@"
    wait $users || {
        cat "$WORK/users.json"
        fail "users saw an error: $*"
    }
    kill $sampler
    wait $sampler || true
    say "$*: $(jq -r '.jobs[0] | "\(.read.total_ios + .write.total_ios) requests, the longest read \(.read.clat_ns.max / 1000000 | floor) ms, the longest write \(.write.clat_ns.max / 1000000 | floor) ms"' "$WORK/users.json"), states: $(sort "$WORK/states" | uniq -c | tr -s ' \n' ' ')"
}

# only PATTERN: no state was shown that it does not match.
only() {
    ! grep -Evx "$1" "$WORK/states" || fail "states that were not expected"
}

all_in_sync() { [ "$("$NETRAID" status --json "$CONTROL" | jq '[.members[] | select(.state == "in_sync")] | length')" = $MEMBERS ]; }

links_down() {
    local index
    for index in $(seq $MEMBERS); do ip link set "v$index" down; done
    sleep "$DOWN_S"
    for index in $(seq $MEMBERS); do ip link set "v$index" up; done
}
flaps() {
    local round
    for round in $(seq $(((LOAD_S - 2) / 3))); do
        kill -STOP "${PID[m2]}"
        sleep 1
        kill -CONT "${PID[m2]}"
        sleep 2
    done
}
# A queue that holds half a second of what is left of the rate.
shaped() {
    tc qdisc change dev v3 root tbf rate $((LINK / 100))bps burst 64kb latency 500ms
    sleep $((LOAD_S * 2 / 3))
    tc qdisc change dev v3 root tbf rate ${LINK}bps burst 256kb latency 50ms
}
loses() {
    ip netns exec "$P-4" nft -f - <<<'table inet loss {
        chain in { type filter hook input priority 0; iifname "eth0" numgen random mod 100 < 2 drop; }
        chain out { type filter hook output priority 0; oifname "eth0" numgen random mod 100 < 2 drop; }
    }'
    sleep $((LOAD_S * 2 / 3))
    ip netns exec "$P-4" nft delete table inet loss
}

for index in $(seq $MEMBERS); do
    host "$index"
    member "$index"
done
mapfile -t URLS < <(uris m1 m2 m3 m4 m5)
"$NETRAID" create vol --level 5 "${URLS[@]}" >/dev/null
attach "${URLS[@]}"
cd "$WORK"

ONE='array (optimal|degraded)|member (in_sync|suspect|faulty|catching_up)'
while_users links_down
only "$ONE|array paused|member missing"
await 60 all_in_sync
for fault in flaps shaped loses; do
    while_users $fault
    only "$ONE"
    # One that crawled stays away for 20 s, and longer when that happened before.
    await 120 all_in_sync
done
expect 0 "$("$NETRAID" scrub --json "$CONTROL" --start --rate max --wait | jq '.wrong + .unrepaired')" "what is wrong"
stop engine
