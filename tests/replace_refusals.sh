# A device that serves already, that is in use, or that is too small takes no member's place, and
# refusing it changes nothing on it.
. "$(dirname "$0")/lib.sh"
need jq

array 5 3
load write 40MiB 1
target small 16MiB
target other
"$NETRAID" create other --level 0 "${URI[other]}" >/dev/null
refused "serves as member 2" "$NETRAID" replace "$CONTROL" 1 "${URI[m2]}"
refused "in use.*other" "$NETRAID" replace "$CONTROL" 1 "${URI[other]}"
refused "capacity" "$NETRAID" replace "$CONTROL" 1 "${URI[small]}"
refused "no member" "$NETRAID" replace "$CONTROL" 7 "${URI[small]}"
refused "in_sync" "$NETRAID" rebuild "$CONTROL" 1
# While the other array is open on this machine, force is no answer.
launch other_engine "$NETRAID" attach --json --nbd 127.0.0.1:0 "${URI[other]}"
refused "other/0 is a member of array 'other', which is open" \
    "$NETRAID" replace "$CONTROL" 1 "${URI[other]}" --force
stop other_engine
expect optimal "$(state)" "state"
load verify 40MiB 1
stop engine
grep -q "array 'other'" <<<"$("$NETRAID" examine "${URI[other]}")" || fail "the other array lost its label"

# A read-only array gives up nothing of a member that it cannot take.
attach --read-only "${URLS[@]}"
target spare
refused "reading only" "$NETRAID" replace "$CONTROL" 1 "${URI[spare]}"
stop engine
attach "${URLS[@]}"
expect optimal "$(state)" "state after the refusals"
stop engine

# A control socket never takes the place of a file.
echo precious >"$WORK/precious"
refused "precious" "$NETRAID" attach --nbd 127.0.0.1:0 --control "unix:$WORK/precious" "${URLS[@]}"
grep -q precious "$WORK/precious" || fail "the file is gone"
