# Filters of a target are felt as what they say: late, failing, corrupt and hanging requests; an
# array copes with what one member does.
. "$(dirname "$0")/lib.sh"
need jq qemu-io

# filtered NAME FILTERS: a target of which LUN 0 has these filters.
filtered() { target "$1" 64MiB --filter "$2"; }
# io NAME COMMAND...: through the iSCSI driver of QEMU, which checks what it reads.
io() {
    local name=$1 args=() command
    shift
    for command in "$@"; do args+=(-c "$command"); done
    qemu-io -f raw -t none "${args[@]}" "${URI[$name]}" >"$WORK/io" 2>&1 && ! grep -Eqi 'fail|error' "$WORK/io"
}
does() { io "$@" || { cat "$WORK/io"; fail "$*"; }; }
says() { grep -q "$1" "$WORK/io" || { cat "$WORK/io"; fail "does not say '$1'"; }; }

say "late"
filtered late delay=40ms,trace="$WORK/trace"
before=$(date +%s%N)
does late 'write -P 1 0 4k' 'read -P 1 0 4k' 'read -P 0 4k 4k'
[ $((($(date +%s%N) - before) / 1000000)) -ge 120 ] || fail "three requests took less than 120 ms"
stop late
grep -Eq '^[0-9]+ write 0 4096 [01] [0-9]+ ok$' "$WORK/trace" || fail "the write is not in the trace"

say "failing and corrupt"
filtered bad 'error=100%:read,range=1MiB+1MiB'
does bad 'write -P 1 0 3M' 'read -P 1 0 1M' 'read -P 1 2M 1M'
! io bad 'read 1M 4k' || fail "a read did not fail"
says 'Input/output error'
stop bad
filtered corrupt '0:corrupt=100%,range=1MiB+1MiB,seed=3'
does corrupt 'write -P 1 0 2M' 'read -P 1 0 1M'
! io corrupt 'read -P 1 1M 4k' || fail "what was read is not corrupt"
says 'Pattern verification failed'
stop corrupt

say "refused"
! "$NETRAID" target --lun ram:1MiB --filter 0:delay=5ms,slow 2>"$WORK/usage" || fail "no usage error"
grep -q "'slow' is no filter" "$WORK/usage" || fail "does not name the filter"
refused 'filter for LUN 1: there are 1' "$NETRAID" target --lun ram:1MiB --filter 1:hang

say "one member fails reads and writes"
target m0
filtered m1 'error=5%:read,range=8MiB+40MiB,seed=1'
target m2
mapfile -t URLS < <(members 3)
"$NETRAID" create vol --level 5 "${URLS[@]}" >/dev/null
attach "${URLS[@]}"
load write 60MiB 1
load verify 60MiB 1
errors=$("$NETRAID" status --json "$CONTROL" | jq '.members[1].errors')
[ "$errors" -gt 0 ] || fail "the array met no error"
stop engine
stop m1

say "one member hangs"
filtered m1 'hang=after 10,range=8MiB+40MiB'
attach "${URLS[@]}"
load write 60MiB 2
load verify 60MiB 2
expect degraded "$(state)" "state of the array"
stop m1
stop engine
