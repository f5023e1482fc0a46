# libnbd's clients see the export as it is, and copy in and out over several connections.
. "$(dirname "$0")/lib.sh"
need jq nbdinfo nbdcopy cmp

array 5 5
nbdinfo --json "$NBD" | tee "$WORK/info"
size=$(jq '.exports[0]."export-size"' "$WORK/info")
expect "$("$NETRAID" status --json "$CONTROL" | jq .capacity_bytes)" "$size" "export size"
for can in can_flush can_fua can_trim can_zero can_multi_conn; do
    expect true "$(jq ".exports[0].$can" "$WORK/info")" "$can"
done
expect false "$(jq '.exports[0].is_read_only' "$WORK/info")" "read-only"

head -c "$size" /dev/urandom >"$WORK/in"
nbdcopy --connections=4 --flush "$WORK/in" "$NBD"
nbdcopy --connections=4 "$NBD" "$WORK/out"
cmp "$WORK/in" "$WORK/out"
stop engine
