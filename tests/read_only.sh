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
# One that was not closed is refused, whatever is in its log, and nothing is changed by that.
attach "${URLS[@]}"
load write 4MiB 3
crash engine
sha256sum "$WORK"/m?.img >"$WORK/sums"
refused "array 'vol' was not closed.* attach it for writing once" \
    "$NETRAID" attach --read-only --nbd 127.0.0.1:0 "${URLS[@]}"
sha256sum --quiet -c "$WORK/sums"
attach "${URLS[@]}"
stop engine
attach --read-only "${URLS[@]}"
load verify 4MiB 3
stop engine
