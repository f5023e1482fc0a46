# An engine dies without a farewell, and the machine has another identity when its successor begins: the sessions of
# the dead one end at the members all the same, before the successor writes.
[ -n "${NETRAID_TEST_NAMESPACE:-}" ] || {
    # A network of its own, whose routes it may change.
    NETRAID_TEST_NAMESPACE=1 exec unshare --user --map-root-user --net --mount bash "$0" "$@"
}
. "$(dirname "$0")/lib.sh"
need jq ip
[ -e /etc/machine-id ] || { say "needs a machine-id to hide"; exit 77; }
ip link set lo up

launch m0 "$NETRAID" target --json --listen 127.0.1.1:0 --listen 127.0.1.2:0 \
    --control "unix:$WORK/m0.sock" --iqn iqn.2026-01.test:m0 --lun "file:$WORK/m0.img:64MiB"
first=$(jq -r '.luns[0].uri' <<<"${READY[m0]}")
second=${first/127.0.1.1:*\/iqn/$(jq -r '.addresses[1]' <<<"${READY[m0]}")\/iqn}
# sessions: the ISIDs of the sessions at the member, but for those that look at it for a moment.
sessions() { "$NETRAID" status --json "unix:$WORK/m0.sock" | jq -r '.sessions[].isid' | sort; }

"$NETRAID" create vol --level 0 "$first" >/dev/null
attach --sessions 2 "$first"
load write 8MiB 1
dead=$(sessions)
[ -n "$dead" ] || fail "the engine has no session"
# What the dying engine's machine says does not come through any more.
ip route add unreachable 127.0.1.1/32 table local
crash engine
expect "$dead" "$(sessions)" "sessions of an engine that could not say farewell"

tr -d - </proc/sys/kernel/random/uuid >"$WORK/machine-id"
mount --bind "$WORK/machine-id" /etc/machine-id
attach --sessions 2 "$second"
left=$(comm -12 <(say "$dead") <(sessions))
expect "" "$left" "sessions of the dead engine beside its successor's"
load verify 8MiB 1
stop engine
