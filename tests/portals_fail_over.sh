# A portal of every member goes away under load, and then the other one: the user sees no error,
# and no member is set aside, although the array has no redundancy at all.
[ -n "${NETRAID_TEST_NAMESPACE:-}" ] || {
    # A network of its own, whose routes it may change.
    NETRAID_TEST_NAMESPACE=1 exec unshare --user --map-root-user --net bash "$0" "$@"
}
. "$(dirname "$0")/lib.sh"
need jq ip
ip link set lo up

# portal up|down ADDRESS: whether the network leads there.
portal() {
    local action=add
    [ "$1" = down ] || action=del
    ip route "$action" unreachable "$2/32" table local
}

# member_of NAME: a target with two portals, as one address.
member_of() {
    local name=$1 second
    launch "$name" "$NETRAID" target --json --listen 127.0.1.1:0 --listen 127.0.1.2:0 \
        --iqn "iqn.2026-01.test:$name" --lun "file:$WORK/$name.img:64MiB"
    second=$(jq -r '.addresses[1]' <<<"${READY[$name]}")
    URLS+=("$(jq -r '.luns[0].uri' <<<"${READY[$name]}")?portal=$second")
}

URLS=()
member_of m0
member_of m1
"$NETRAID" create vol --level 0 "${URLS[@]}" >/dev/null
attach --sessions 2 "${URLS[@]}"
load write 32MiB 1

# load_while COMMAND...: writes over and over until the command has ended.
load_while() {
    "$@" &
    local child=$! seed=1 rounds=0
    while kill -0 "$child" 2>/dev/null; do
        seed=$((seed + 1))
        load write 32MiB "$seed" >/dev/null
        load verify 32MiB "$seed" >/dev/null
        rounds=$((rounds + 1))
    done
    wait "$child"
    say "$rounds rounds of load"
}

# For longer than a silent connection is believed in.
swap() {
    portal down 127.0.1.1
    sleep 3
    portal up 127.0.1.1
    portal down 127.0.1.2
    sleep 3
    portal up 127.0.1.2
}
load_while swap
expect optimal "$(state)" "state after both portals were away in turn"
errors=$("$NETRAID" status --json "$CONTROL" | jq '[.members[].errors] | add')
expect 0 "$errors" "errors of members"

# Without any portal a member is lost, and the array of level 0 with it: promptly, since there is
# no way to it.
portal down 127.0.1.1
portal down 127.0.1.2
! timeout 20 "$NETRAID" load write "$NBD" --len 1MiB --seed 9 2>/dev/null || fail "wrote to nowhere"
portal up 127.0.1.1
portal up 127.0.1.2
