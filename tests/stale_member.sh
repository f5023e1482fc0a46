# A member that was away while data changed is not read when it comes back, however it comes back.
. "$(dirname "$0")/lib.sh"
need jq

array 5 4
load write 100MiB 1
crash m2
load write 100MiB 2
expect degraded "$(state)" "state"

# It comes back while the array runs.
target m2
load verify 100MiB 2
stop engine

# It is there when the array is opened.
attach "${URLS[@]}"
expect degraded "$(state)" "state after reopening"
[ "$(member_state 2)" != in_sync ] || fail "the stale member counts"
load verify 100MiB 2
crash m0
! load verify 100MiB 2 2>"$WORK/err.txt" || fail "the stale member was read"
! grep -q "wrong byte" "$WORK/err.txt" || fail "the stale member was read"
