# What the lab's tests share: a network of their own with two wires to a guest, a real Linux with
# open-iscsi, multipath, LIO and sg3-utils, and a judge of its kernel's log. Source it first.
#
# The host is 10.0.2.2 and 10.0.3.2, the guest 10.0.2.15 and 10.0.3.15, each pair on a wire.
set -euo pipefail
lab=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -z "${NETRAID_LAB:-}" ]; then
    . "$lab/../lib.sh"
    need jq ip mmdebstrap mke2fs depmod
    [ "$(id -u)" = 0 ] || { say "needs root for network namespaces"; exit 77; }
    [ -e /dev/net/tun ] || { say "needs /dev/net/tun"; exit 77; }
    NETRAID_LAB=${NETRAID_LAB_DIR:-$lab/../../target/lab}
    "$lab/vm/build.sh" "$NETRAID_LAB"
    rm -rf "$WORK"
    trap - EXIT
    # The disks and the guest's memory are files: they belong into memory.
    NETRAID_LAB=$NETRAID_LAB TMPDIR=/dev/shm exec unshare --net bash "$0" "$@"
fi
. "$lab/../lib.sh"

ip link set lo up
for path in 0 1; do
    ip tuntap add "tap$path" mode tap vnet_hdr
    ip address add "10.0.$((2 + path)).2/24" dev "tap$path"
    ip link set "tap$path" up
done

# serve NAME SIZE [ARG...]: a target on the first wire, at the usual port; a second start of a name
# uses its file again.
serve() {
    local name=$1 size=$2
    shift 2
    launch "$name" "$NETRAID" target --json --insecure --iqn "iqn.2026-01.test:$name" \
        --listen 10.0.2.2:3260 --lun "file:$WORK/$name.img:$size" "$@"
}

GUEST=$WORK/guest # the directory that the guest sees as /host
GUEST_LIMIT=${GUEST_LIMIT:-240} # seconds that a guest may run

# guest_start: boots a guest that runs the script on standard input.
guest_start() {
    rm -rf "$GUEST"
    mkdir -p "$GUEST"
    cp "$lab/vm/init.sh" "$GUEST/init.sh"
    { cat "$lab/vm/guest.sh"; cat; } >"$GUEST/run.sh"
    timeout --kill-after=5 "$GUEST_LIMIT" "$lab/vm/run.sh" "$NETRAID_LAB/linux" mem=768M log_buf_len=4M \
        "ubd0=$WORK/cow,$NETRAID_LAB/root.img" root=/dev/ubda rw init=/lab-init host="$GUEST" \
        con=null con0=null,fd:2 quiet vec0:transport=tap,ifname=tap0,depth=128,gro=1 \
        vec1:transport=tap,ifname=tap1,depth=128,gro=1 </dev/null >"$WORK/console" 2>&1 &
    PID[guest]=$!
}

# guest_tells WORD: waits until the guest did `tell WORD`. tell_guest WORD: its `await WORD` goes on.
guest_tells() {
    until [ -e "$GUEST/told.$1" ]; do
        kill -0 "${PID[guest]}" 2>/dev/null || guest_end
        sleep 0.1
    done
}
tell_guest() { touch "$GUEST/answer.$1"; }

# guest_end [PATTERN]: waits until the guest's script has ended, well, and its kernel has warned of
# nothing but what vm/kernel-lines.txt, or the extended pattern, allows.
guest_end() {
    local child=${PID[guest]} status
    unset "PID[guest]"
    wait "$child" || true
    rm -f "$WORK/cow"
    cat "$GUEST/log" 2>/dev/null || true
    [ -e "$GUEST/status" ] || { tail -n 30 "$WORK/console"; fail "the guest died or took more than $GUEST_LIMIT s"; }
    status=$(cat "$GUEST/status")
    [ "$status" = 0 ] || { tail -n 30 "$GUEST/kernel.log"; fail "the guest's script ended with $status"; }
    kernel_is_quiet "${1:-}"
}

# guest [PATTERN]: guest_start and guest_end.
guest() {
    guest_start
    guest_end "${1:-}"
}

kernel_is_quiet() {
    local bad allowed
    # A log that has lost its beginning may have lost a warning.
    grep -q 'Linux version' "$GUEST/kernel.log" || fail "the guest's kernel log is cut off"
    allowed=$(grep -v '^#' "$lab/vm/kernel-lines.txt" | paste -sd '|')
    [ -z "$1" ] || allowed="$allowed|$1"
    bad=$({
        cat "$GUEST/kernel.warnings"
        grep -E 'Buffer I/O error|Call Trace|BUG|WARNING|hung|corrupt' "$GUEST/kernel.log" || true
    } | grep -Ev -- "$allowed" | sort | uniq -c || true)
    [ -z "$bad" ] || fail "the guest's kernel says:"$'\n'"$bad"
}
