# libiscsi's tools discover the target and see its LUNs.
. "$(dirname "$0")/lib.sh"
need jq iscsi-ls iscsi-inq iscsi-readcapacity16

target m0 64MiB --lun ram:16MiB
portal=$(jq -r '.addresses[0]' <<<"${READY[m0]}")
iscsi-ls --show-luns "iscsi://$portal" | tee "$WORK/ls"
grep -q 'iqn.2026-01.test:m0' "$WORK/ls" || fail "target not listed"
expect 2 "$(grep -c 'Lun:' "$WORK/ls")" "LUNs"
iscsi-inq "${URI[m0]}" | tee "$WORK/inq"
grep -qi 'DIRECT_ACCESS' "$WORK/inq" || fail "not a disk"
for page in 0x00 0x80 0x83 0xb0 0xb1 0xb2; do
    iscsi-inq -e 1 -c $((page)) "${URI[m0]}" >"$WORK/vpd" || fail "VPD page $page"
    [ -s "$WORK/vpd" ] || fail "VPD page $page is empty"
done
iscsi-readcapacity16 "${URI[m0]}" | tee "$WORK/capacity"
grep -q 'Total size:67108864' "$WORK/capacity" || fail "capacity"
stop m0
