# An array with more members away than its level survives does not open, and says which are away.
. "$(dirname "$0")/lib.sh"
need jq

array 5 4
load write 50MiB 1
stop engine
refused "2 of 4.*member [0-3]" "$NETRAID" attach --nbd 127.0.0.1:0 "${URLS[0]}" "${URLS[3]}"

# While it runs: the second loss ends in errors, never in wrong bytes.
attach --pause 0 "${URLS[@]}"
crash m0
load verify 50MiB 1
expect degraded "$(state)" "state after one loss"
crash m1
! load verify 50MiB 1 2>"$WORK/err.txt" || fail "read data that cannot be there"
! grep -q "wrong byte" "$WORK/err.txt" || fail "wrong bytes instead of an error"
expect failed "$(state)" "state after two losses"
