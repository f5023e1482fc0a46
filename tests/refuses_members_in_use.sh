# create takes no member that belongs to an array, is given twice, is too small, or too unequal.
. "$(dirname "$0")/lib.sh"
need jq

targets 3
"$NETRAID" create first --level 5 "${URI[m0]}" "${URI[m1]}" "${URI[m2]}" >/dev/null
target fresh
target tiny 1MiB
target huge 4GiB
refused "first.*(--force|wipe)" "$NETRAID" create second --level 1 "${URI[m0]}" "${URI[fresh]}"
refused "twice|same" "$NETRAID" create second --level 1 "${URI[fresh]}" "${URI[fresh]}"
refused "small" "$NETRAID" create second --level 1 "${URI[fresh]}" "${URI[tiny]}"
refused "unequal|size|larger" "$NETRAID" create second --level 1 "${URI[fresh]}" "${URI[huge]}"
refused "level 5" "$NETRAID" create second --level 5 "${URI[fresh]}" "${URI[tiny]}"
# What was refused left no trace: the first array still is whole.
attach "${URI[m0]}" "${URI[m1]}" "${URI[m2]}"
expect optimal "$(state)" "state"
# While the array is open on this machine, force is no answer.
load write 40MiB 1
refused "m0/0 is a member of array 'first', which is open" \
    "$NETRAID" create second --level 1 --force "${URI[fresh]}" "${URI[m0]}"
load verify 40MiB 1
expect optimal "$(state)" "state after the refusal"
# A device that the array has no more is free.
target spare
"$NETRAID" replace "$CONTROL" 2 "${URI[spare]}"
rebuilt
"$NETRAID" create freed --level 1 --force "${URI[fresh]}" "${URI[m2]}" >/dev/null
load verify 40MiB 1
stop engine
"$NETRAID" create second --level 1 --force "${URI[m0]}" "${URI[fresh]}" >/dev/null
