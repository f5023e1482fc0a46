# A file system lives on a loop device over the FUSE export: its files are whole after it was
# mounted again, also with a member lost, and fsck finds nothing.
. "$(dirname "$0")/lib.sh"
need jq losetup mkfs.ext4 fsck.ext4 sha256sum
[ "$(id -u)" = 0 ] || { say "needs root for losetup and mount"; exit 77; }

targets 5 128MiB
mapfile -t urls < <(members 5)
"$NETRAID" create vol --level 5 "${urls[@]}" >/dev/null
mkdir "$WORK/fuse" "$WORK/mnt"

mount_all() {
    attach --fuse "$WORK/fuse" "${urls[@]}"
    file=$(jq -r '.exports[] | select(.kind == "fuse") | .path' <<<"${READY[engine]}")
    loop=$(losetup --find --show "$file")
}
umount_all() {
    ! mountpoint -q "$WORK/mnt" || umount "$WORK/mnt"
    [ -z "${loop:-}" ] || losetup --detach "$loop"
    loop=
}
at_end umount_all

mount_all
mkfs.ext4 -q "$loop"
mount "$loop" "$WORK/mnt"
for index in $(seq 40); do
    mkdir -p "$WORK/mnt/d$((index % 7))"
    head -c $((index * 50000 + 13)) /dev/urandom >"$WORK/mnt/d$((index % 7))/f$index"
done
(cd "$WORK/mnt" && find . -type f -exec sha256sum {} + >"$WORK/sums")
umount_all
stop engine

mount_all
fsck.ext4 -fn "$loop"
mount "$loop" "$WORK/mnt"
(cd "$WORK/mnt" && sha256sum --quiet -c "$WORK/sums")
crash m3
umount "$WORK/mnt"
mount "$loop" "$WORK/mnt"
(cd "$WORK/mnt" && sha256sum --quiet -c "$WORK/sums")
head -c 3000000 /dev/urandom >"$WORK/mnt/degraded"
rm "$WORK/mnt/d1/"*
umount_all
loop=$(losetup --find --show "$file")
fsck.ext4 -fn "$loop"
umount_all
stop engine
