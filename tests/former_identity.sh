# An engine dies without a farewell, and the machine has another identity when its successors begin: the sessions of
# the dead one end at the members all the same, before anything else is written, also at a member that comes back
# after the first successor; and what the dead one registered there keeps nobody out.
[ -n "${NETRAID_TEST_NAMESPACE:-}" ] || {
    # A network of its own, whose routes it may change.
    NETRAID_TEST_NAMESPACE=1 exec unshare --user --map-root-user --net --mount bash "$0" "$@"
}
. "$(dirname "$0")/lib.sh"
need jq ip
[ -e /etc/machine-id ] || { say "needs a machine-id to hide"; exit 77; }
ip link set lo up

OLD=() # by the portals that the dead engine uses
NEW=() # by those of its successors
for name in m0 m1 m2; do
    launch $name "$NETRAID" target --json --listen 127.0.1.1:0 --listen 127.0.1.2:0 \
        --control "unix:$WORK/$name.sock" --iqn "iqn.2026-01.test:$name" --lun "file:$WORK/$name.img:64MiB"
    OLD+=("$(jq -r '.luns[0].uri' <<<"${READY[$name]}")")
    NEW+=("iscsi://$(jq -r '.addresses[1]' <<<"${READY[$name]}")/iqn.2026-01.test:$name/0")
done
# sessions NAME: the ISIDs of the sessions at a member.
sessions() { "$NETRAID" status --json "unix:$WORK/$1.sock" | jq -r '.sessions[].isid' | sort; }
# dead_at NAME: those of the dead engine.
declare -A DEAD=()
dead_at() { comm -12 <(say "${DEAD[$1]}") <(sessions "$1"); }

"$NETRAID" create vol --level 5 "${OLD[@]}" >/dev/null
attach --sessions 2 "${OLD[@]}"
load write 8MiB 1
for name in m0 m1 m2; do
    DEAD[$name]=$(sessions $name)
    [ -n "${DEAD[$name]}" ] || fail "the engine has no session at $name"
done
# What the dying engine's machine says does not come through any more.
ip route add unreachable 127.0.1.1/32 table local
crash engine
for name in m0 m1 m2; do expect "${DEAD[$name]}" "$(dead_at $name)" "sessions without a farewell at $name"; done

tr -d - </proc/sys/kernel/random/uuid >"$WORK/machine-id"
mount --bind "$WORK/machine-id" /etc/machine-id
attach --degraded --sessions 2 "${NEW[0]}" "${NEW[1]}"
for name in m0 m1; do expect "" "$(dead_at $name)" "sessions of the dead engine at $name"; done
expect "${DEAD[m2]}" "$(dead_at m2)" "sessions at a member that the successor does not know"
load verify 8MiB 1
load write 8MiB 2
stop engine

expect "${DEAD[m2]}" "$(dead_at m2)" "sessions at a member that nobody has come back to"
# The labels that decide name the first successor by now: the third member's own names the dead engine.
attach --sessions 2 "${NEW[@]}"
expect "" "$(dead_at m2)" "sessions of the dead engine at m2"
next_event engine '.event == "rebuilt" or .event == "caught_up"' >/dev/null
load verify 8MiB 2
expect optimal "$(state)" "state"
stop engine
