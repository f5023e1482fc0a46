# A cluster on shaped links: agents in a network namespace each, all on a bridge, 200 Mbit/s in both
# directions. Source it first, instead of lib.sh: the script runs in a network namespace of its own.
set -euo pipefail
if [ -z "${NETRAID_OWN_NET:-}" ]; then
    [ "$(id -u)" = 0 ] || { echo "needs root for network namespaces"; exit 77; }
    command -v ip >/dev/null && command -v tc >/dev/null || { echo "needs ip and tc"; exit 77; }
    # Disks would be in the way: members are in memory.
    NETRAID_OWN_NET=1 TMPDIR=/dev/shm exec unshare --net --mount bash "$0" "$@"
fi
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
need jq

LINK=25000000 # bytes a second of each agent's link
NET=10.213.78
P=nrt$$

ip link set lo up
ip link add br0 type bridge stp_state 0 forward_delay 0
ip address add $NET.100/24 dev br0
ip link set br0 up

# host I: a network namespace with a shaped link in both directions.
host() {
    ip netns add "$P-$1"
    at_end ip netns delete "$P-$1"
    ip link add "v$1" type veth peer name eth0 netns "$P-$1"
    ip -n "$P-$1" address add "$NET.$1/24" dev eth0
    ip -n "$P-$1" link set lo up
    ip -n "$P-$1" link set eth0 up
    ip link set "v$1" master br0 up
    # The burst has to hold a whole segment of 64 KiB.
    tc qdisc add dev "v$1" root tbf rate ${LINK}bps burst 256kb latency 50ms
    ip netns exec "$P-$1" tc qdisc add dev eth0 root tbf rate ${LINK}bps burst 256kb latency 50ms
}

# mediator: starts one on this side, and sets who asks it.
mediator() {
    launch mediator "$NETRAID" mediator run --json --dir "$WORK/mediator" --listen $NET.100:7400
    export NETRAID_ACCESS=$WORK/mediator/client.access
    ADMIN=$WORK/mediator/admin.access
}

# agent I ARG...: runs an agent on host I.
agent() {
    local at=$1
    shift
    launch "agent$at" ip netns exec "$P-$at" "$NETRAID" agent run --json --dir "$WORK/agent$at" \
        --listen "$NET.$at:7401" --portal "$NET.$at:3260" --space 4GiB --host "host$at" \
        --mediator "$WORK/mediator/agent.access" "$@"
}

# known COUNT: waits until the mediator has heard of so many agents.
known() {
    for _ in $(seq 200); do
        [ "$("$NETRAID" mediator status --json --access "$ADMIN" | jq .reachable)" = "$1" ] && return
        sleep 0.1
    done
    fail "the mediator does not know $1 agents"
}
