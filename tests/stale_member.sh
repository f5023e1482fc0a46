# A member that was away while data changed is not read as if it were current when it comes back,
# however it comes back; with a log it catches up by itself, without one it is rebuilt on request.
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
rebuilt
expect optimal "$(state)" "state when it has caught up"
crash m0
load verify 100MiB 2
target m0
rebuilt

# It is there when the array is opened.
crash m1
load write 100MiB 3
stop engine
target m1
attach "${URLS[@]}"
load verify 100MiB 3
rebuilt
expect optimal "$(state)" "state when it has caught up again"
crash m3
load verify 100MiB 3
# What is set aside by command stays away; and a member is not read before it has caught up.
target m3
rebuilt
"$NETRAID" fail "$CONTROL" 2
load write 100MiB 4
crash engine
stop m2
attach "${URLS[@]}"
crash m0
! load verify 100MiB 4 2>"$WORK/err.txt" || fail "two members are away"
! grep -q "wrong byte" "$WORK/err.txt" || fail "a stale member was read"
crash engine
target m2
target m0

say "without a log"
"$NETRAID" create vol --force --log off --level 5 "${URLS[@]}" >/dev/null
attach "${URLS[@]}"
load write 100MiB 1
crash m2
load write 100MiB 2
expect degraded "$(state)" "state"
target m2
load verify 100MiB 2
stop engine
attach "${URLS[@]}"
expect degraded "$(state)" "state after reopening"
[ "$(member_state 2)" != in_sync ] || fail "the stale member counts"
load verify 100MiB 2
crash m0
! load verify 100MiB 2 2>"$WORK/err.txt" || fail "the stale member was read"
! grep -q "wrong byte" "$WORK/err.txt" || fail "the stale member was read"
