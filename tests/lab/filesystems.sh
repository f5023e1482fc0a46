# A stock Linux initiator: ext4 and xfs with verified data, unmapped space is given back, and
# zeroed blocks read as zeros.
. "$(dirname "$0")/lib.sh"

size=32M
[ "$NIGHTLY" = 0 ] || size=256M
serve disk 1GiB
guest_start < <(say "size=$size"; cat <<'GUEST'
start_iscsid
login 10.0.2.2
disk=$(disk)
for kind in ext4 xfs; do
    mkfs.$kind -q $disk
    mount $disk /mnt
    fio --name=data --directory=/mnt --size=$size --rw=randwrite --bsrange=4k-128k --direct=1 \
        --ioengine=libaio --iodepth=16 --verify=crc32c --verify_fatal=1 --group_reporting --minimal >/dev/null
    sha256sum /mnt/data* >/tmp/sums
    umount /mnt
    if [ $kind = ext4 ]; then e2fsck -fn $disk; else xfs_repair -n $disk 2>&1; fi
    mount $disk /mnt
    sha256sum --check --quiet /tmp/sums
    sync -f /mnt
    tell $kind.full
    await $kind.full
    rm /mnt/data*
    sync -f /mnt
    fstrim -v /mnt
    umount /mnt
    tell $kind.trimmed
    await $kind.trimmed
    blkdiscard --force $disk
    tell $kind.empty
    await $kind.empty
done

# WRITE SAME and UNMAP as the block layer sends them, seen through the page cache's back.
head -c 16M /dev/zero | tr '\0' U | dd of=$disk bs=1M oflag=direct iflag=fullblock status=none
blkdiscard --force --zeroout --offset 1M --length 4M $disk
blkdiscard --force --offset 8M --length 4M $disk
sum() { sha256sum | cut -c1-64; }
full=$(head -c 1M /dev/zero | tr '\0' U | sum)
zeros=$(head -c 1M /dev/zero | sum)
expected=$(printf '%s\n' "1 $full" "4 $zeros" "3 $full" "4 $zeros" "4 $full")
found=$(for block in $(seq 0 15); do
    dd if=$disk bs=1M skip=$block count=1 iflag=direct status=none | sum
done | uniq -c | sed 's/^ *//')
expect "$expected" "$found" "megabytes after zeroing and discarding"
logout
GUEST
)
used() { echo $(($(stat -c %b "$WORK/disk.img") / 2048)); }
for kind in ext4 xfs; do
    guest_tells $kind.full
    full=$(used)
    tell_guest $kind.full
    guest_tells $kind.trimmed
    trimmed=$(used)
    tell_guest $kind.trimmed
    guest_tells $kind.empty
    empty=$(used)
    tell_guest $kind.empty
    say "$kind: $full MiB in use, $trimmed MiB after fstrim, $empty MiB after blkdiscard"
    [ $((full - trimmed)) -ge $((${size%M} * 9 / 10)) ] || fail "$kind: fstrim gave $full - $trimmed MiB back"
    expect 0 "$empty" "MiB in use after blkdiscard"
done
guest_end
stop disk
