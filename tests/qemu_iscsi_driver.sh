# QEMU's iscsi driver writes an image to a LUN and reads it back, with digests on and off.
. "$(dirname "$0")/lib.sh"
need jq qemu-img qemu-io

target m0 64MiB
head -c 67108864 /dev/urandom >"$WORK/image"
for digest in none crc32c; do
    lun="json:{\"driver\":\"raw\",\"file\":{\"driver\":\"iscsi\",\"transport\":\"tcp\"
        ,\"portal\":\"$(jq -r '.addresses[0]' <<<"${READY[m0]}")\",\"target\":\"iqn.2026-01.test:m0\"
        ,\"lun\":0,\"header-digest\":\"$digest\"}}"
    qemu-img convert -n -f raw -O raw "$WORK/image" "json:${lun#json:}"
    qemu-img compare -f raw "$WORK/image" "$lun"
    qemu-io -c "write -z 1M 3M" -c "read -P 0 1M 3M" -c "discard 8M 4M" -c flush "$lun" | tee "$WORK/io"
    ! grep -qi "failed\|error" "$WORK/io" || fail "qemu-io with header digest $digest"
done
stop m0
