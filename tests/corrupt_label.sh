# A member whose first label copy is corrupt serves by the other one; with both gone it is no member.
. "$(dirname "$0")/lib.sh"
need jq

array 5 3
load write 50MiB 1
stop engine
first=0
second=$((32 << 10))
corrupt() { printf 'garbage' | dd of="$WORK/m1.img" bs=1 seek=$(($1 + 40)) conv=notrunc status=none; }
restart_member() {
    stop m1
    corrupt "$1"
    target m1
}
restart_member $first
attach "${URLS[@]}"
expect optimal "$(state)" "state with one copy of a label"
load verify 50MiB 1
stop engine

# Closing wrote both copies anew.
restart_member $second
attach "${URLS[@]}"
expect optimal "$(state)" "state with the other copy of a label"
stop engine

stop m1
corrupt $first
corrupt $second
target m1
"$NETRAID" examine "${URI[m1]}" >"$WORK/examine" 2>&1 || true
grep -q "corrupt" "$WORK/examine" || fail "examine does not say that the label is corrupt"
attach --force "${URLS[@]}"
expect degraded "$(state)" "state with both copies gone"
load verify 50MiB 1
stop engine
