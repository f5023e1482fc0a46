# A qcow2 image made on the array passes its own check and gives its contents back.
. "$(dirname "$0")/lib.sh"
need jq qemu-img qemu-io

array 5 3 96MiB
qemu-img create -q -f qcow2 "$NBD" 80M
qemu-io -f qcow2 -c "write -P 0x5a 0 20M" -c "write -P 0xa5 33333K 777K" -c "discard 4M 2M" "$NBD" >/dev/null
qemu-img check -f qcow2 "$NBD"
stop engine
attach "${URLS[@]}"
qemu-img check -f qcow2 "$NBD"
qemu-io -f qcow2 -c "read -P 0x5a 0 4M" -c "read -P 0x5a 6M 14M" -c "read -P 0xa5 33333K 777K" \
    -c "read -P 0 34110K 10M" "$NBD" | tee "$WORK/read"
! grep -qi "verification failed\|error" "$WORK/read" || fail "contents changed"
stop engine
