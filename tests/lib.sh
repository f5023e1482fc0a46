# What the scripts share: processes that are started, awaited and ended by their ids, a
# directory that goes away, and expectations. Source it first.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
NETRAID=${NETRAID:-$here/../target/debug/netraid}
NIGHTLY=${NETRAID_NIGHTLY:-0}
WORK=$(mktemp -d "${TMPDIR:-/tmp}/netraid-test.XXXXXX")

declare -A PID=()   # process id by name, of what runs now
declare -A READY=() # the document that a process printed when it was ready
declare -A EVENTS=() # descriptor from which its later lines are read
declare -A URI=()   # address of LUN 0 of a target by its name
CLEANUPS=()         # commands to run at the end, last first

say() { printf '%s\n' "$*"; }
fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}

# need TOOL...: ends the script as skipped when a tool is missing (CI takes that for a failure).
need() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || {
            say "needs $tool; .ci/run installs it"
            exit 77
        }
    done
}

# at_end COMMAND...: runs it when the script ends, whichever way.
at_end() { CLEANUPS+=("$(printf '%q ' "$@")"); }

finish() {
    local status=$? index name
    set +e
    for ((index = ${#CLEANUPS[@]} - 1; index >= 0; index--)); do eval "${CLEANUPS[index]}"; done
    for name in "${!PID[@]}"; do kill -TERM "${PID[$name]}" 2>/dev/null; done
    for name in "${!PID[@]}"; do await_end "${PID[$name]}" 10 || kill -KILL "${PID[$name]}" 2>/dev/null; done
    if [ "$status" != 0 ] && [ "$status" != 77 ]; then
        for name in "$WORK"/*.err; do
            [ -s "$name" ] && { say "--- $name"; tail -n 20 "$name"; }
        done
    fi
    rm -rf "$WORK"
    exit "$status"
}
trap finish EXIT

# await_end PID SECONDS: waits until a child has ended, without reaping its status.
await_end() {
    local child=$1 deadline=$((SECONDS + $2)) state
    while state=$(cut -d' ' -f3 "/proc/$child/stat" 2>/dev/null) && [ "$state" != Z ]; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.02
    done
}

# launch NAME COMMAND...: starts a daemon and waits for the line that says it is ready.
launch() {
    local name=$1 line='' fifo
    shift
    fifo=$(mktemp -u "$WORK/$name.XXXXXX.out")
    mkfifo "$fifo"
    "$@" >"$fifo" 2>>"$WORK/$name.err" &
    PID[$name]=$!
    exec {EVENTS[$name]}<"$fifo"
    IFS= read -r -t 30 -u "${EVENTS[$name]}" line || {
        cat "$WORK/$name.err" >&2
        fail "$name did not become ready: $*"
    }
    READY[$name]=$line
    [ "$(jq -r .event <<<"$line")" = ready ] || fail "$name said $line"
}

# next_event NAME JQ-CONDITION: reads on until a line fulfils the condition, and prints it.
next_event() {
    local line
    while IFS= read -r -t 60 -u "${EVENTS[$1]}" line; do
        if jq -e "$2" >/dev/null <<<"$line"; then
            say "$line"
            return
        fi
    done
    fail "$1 never reported $2"
}

# stop NAME: SIGTERM, and the process must end by itself, cleanly.
stop() {
    local child=${PID[$1]} status=0
    unset "PID[$1]"
    kill -TERM "$child"
    await_end "$child" 30 || {
        kill -KILL "$child"
        fail "$1 does not end on SIGTERM"
    }
    wait "$child" || status=$?
    [ $status = 0 ] || fail "$1 ended with $status after SIGTERM"
}

# crash NAME...: SIGKILL, for all at once.
crash() {
    local name children=()
    for name in "$@"; do
        children+=("${PID[$name]}")
        unset "PID[$name]"
    done
    kill -KILL "${children[@]}"
    wait "${children[@]}" 2>/dev/null || true
}

# target NAME [SIZE [ARG...]]: serves a sparse file; a second start of a name uses its file and
# its port again.
target() {
    local name=$1 size=${2:-64MiB} listen=127.0.0.1:0
    shift $(($# < 2 ? $# : 2))
    if [ -n "${URI[$name]:-}" ]; then
        listen=${URI[$name]#iscsi://}
        listen=${listen%%/*}
    fi
    launch "$name" "$NETRAID" target --json --listen "$listen" --iqn "iqn.2026-01.test:$name" \
        --lun "file:$WORK/$name.img:$size" "$@"
    URI[$name]=$(jq -r '.luns[0].uri' <<<"${READY[$name]}")
}

# targets COUNT [SIZE]: targets m0, m1, ...
targets() {
    local index
    for ((index = 0; index < $1; index++)); do target "m$index" "${2:-64MiB}"; done
}

# uris NAME...: their addresses.
uris() {
    local name
    for name in "$@"; do say "${URI[$name]}"; done
}

# members COUNT: the addresses of m0, m1, ...
members() {
    local index
    for ((index = 0; index < $1; index++)); do say "${URI[m$index]}"; done
}

# attach ARG...: runs an array with an NBD export; sets NBD and CONTROL.
attach() {
    CONTROL=unix:$WORK/control.sock
    launch engine "$NETRAID" attach --json --nbd 127.0.0.1:0 --control "$CONTROL" "$@"
    NBD=$(jq -r '.exports[] | select(.kind == "nbd") | .uri' <<<"${READY[engine]}")
}

# array LEVEL COUNT [SIZE]: COUNT targets with an array of that level, attached.
array() {
    targets "$2" "${3:-64MiB}"
    mapfile -t URLS < <(members "$2")
    "$NETRAID" create vol --level "$1" "${URLS[@]}" >/dev/null
    attach "${URLS[@]}"
}

# state: the array's state; member_state INDEX: a member's.
state() { "$NETRAID" status --json "$CONTROL" | jq -r .state; }
member_state() { "$NETRAID" status --json "$CONTROL" | jq -r ".members[$1].state"; }

is_in_state() { [ "$(member_state "$1")" = "$2" ]; }

# await SECONDS COMMAND...: until it succeeds, so long at most.
await() {
    local deadline=$((SECONDS + $1))
    until "${@:2}"; do
        [ $SECONDS -lt $deadline ] || fail "after $1 s not yet: ${*:2}: $("$NETRAID" status "$CONTROL")"
        sleep 0.05
    done
}

# rebuilt: waits until the engine reports the end of a rebuild.
rebuilt() { next_event engine '.event == "rebuilt"' >/dev/null; }

# load write|verify LEN SEED [ARG...]: data that is made from a seed, through the export.
load() {
    local action=$1 len=$2 seed=$3
    shift 3
    "$NETRAID" load "$action" "$NBD" --len "$len" --seed "$seed" "$@"
}

# expect WANTED FOUND WHAT
expect() { [ "$1" = "$2" ] || fail "$3: expected '$1', found '$2'"; }

# refused PATTERN COMMAND...: must end with status 1, within 30 s, and say PATTERN in one line
# on standard error.
refused() {
    local pattern=$1 status=0 text
    shift
    text=$(timeout 30 "$@" 2>&1 >/dev/null) || status=$?
    say "$text"
    [ $status = 1 ] || fail "status $status instead of 1: $*"
    grep -Eq -- "$pattern" <<<"$text" || fail "does not say '$pattern': $*"
    ! grep -q panicked <<<"$text" || fail "panicked: $*"
    expect 1 "$(grep -c '^netraid: ' <<<"$text")" "lines that name the error"
}
