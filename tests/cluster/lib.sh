# A cluster on loopback: a mediator and agents, each started again where it was. Source it first, instead of
# lib.sh.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
need jq

MEDIATOR_DIR=$WORK/mediator # a script may set another one before it starts anything
MEDIATOR_AT=127.0.0.1:0
declare -A API=() PORTAL=()

# again NAME COMMAND...: starts a daemon; what an earlier one of this name said last is not read any more.
again() {
    [ -z "${EVENTS[$1]:-}" ] || exec {EVENTS[$1]}<&-
    launch "$@"
}

# mediator: starts it, and sets who asks it.
mediator() {
    again mediator "$NETRAID" mediator run --json --dir "$MEDIATOR_DIR" --listen "$MEDIATOR_AT"
    MEDIATOR_AT=$(jq -r .url <<<"${READY[mediator]}")
    MEDIATOR_AT=${MEDIATOR_AT#*://}
    export NETRAID_ACCESS=$MEDIATOR_DIR/client.access
    ADMIN=$MEDIATOR_DIR/admin.access
}

# agent I [DIR]: starts agent I.
agent() {
    again "agent$1" "$NETRAID" agent run --json --dir "${2:-$WORK/agent$1}" --space 4GiB --rate 512MiB \
        --listen "${API[$1]:-127.0.0.1:0}" --portal "${PORTAL[$1]:-127.0.0.1:0}" --host "host$1" \
        --mediator "$MEDIATOR_DIR/agent.access"
    API[$1]=$(jq -r .api <<<"${READY[agent$1]}")
    API[$1]=${API[$1]#*://}
    PORTAL[$1]=$(jq -r .portal <<<"${READY[agent$1]}")
}

# known COUNT: whether the mediator has heard of so many agents.
known() {
    [ "$("$NETRAID" mediator status --json --access "$ADMIN" 2>/dev/null | jq .reachable)" = "$1" ]
}

# agree: whether agents and the mediator do; what it found is in $WORK/check.json.
agree() { "$NETRAID" mediator check --json --access "$ADMIN" >"$WORK/check.json" 2>"$WORK/check.text"; }

# soon COMMAND...: until it succeeds, within a minute.
soon() {
    local deadline=$((SECONDS + 60))
    until "$@"; do
        [ $SECONDS -lt $deadline ] || fail "not in time: $*: $(tail -n 3 "$WORK/said" "$WORK/check.text" 2>/dev/null)"
        sleep 0.1
    done
}

# small_disk: mounts one of 6 MiB at $WORK/state. full: not one byte of it is left, however small the writes;
# space: there is room again.
small_disk() {
    [ "$(id -u)" = 0 ] || { say "needs root for mount"; exit 77; }
    at_end leave_small_disk
    mkdir "$WORK/state"
    mount -t tmpfs -o size=6m none "$WORK/state"
}
leave_small_disk() { ! mountpoint -q "$WORK/state" || umount --lazy "$WORK/state"; }
full() {
    dd if=/dev/zero of="$WORK/state/ballast" bs=64k status=none 2>/dev/null || true
    dd if=/dev/zero of="$WORK/state/ballast" bs=1 oflag=append conv=notrunc status=none 2>/dev/null || true
}
space() { rm "$WORK/state/ballast"; }
