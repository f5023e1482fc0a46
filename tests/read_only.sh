# An array attached for reading only changes no member.
. "$(dirname "$0")/lib.sh"
need jq nbdinfo sha256sum

array 5 3
load write 30MiB 1
stop engine
sha256sum "$WORK"/m?.img >"$WORK/sums"
attach --read-only "${URLS[@]}"
expect true "$(nbdinfo --json "$NBD" | jq '.exports[0].is_read_only')" "read-only flag"
load verify 30MiB 1
! load write 1MiB 2 2>/dev/null || fail "a write went through"
stop engine
sha256sum --quiet -c "$WORK/sums"
