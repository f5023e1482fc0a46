# The disk below a file system fails to take what was written: the flush that finds out fails, and
# so does every later flush and FUA write until the file is opened again; the kernel would report
# it only once.
. "$(dirname "$0")/lib.sh"
need jq qemu-io losetup mkfs.ext4
[ "$(id -u)" = 0 ] || { say "needs root for mount"; exit 77; }

leave() {
    local dir
    for dir in "$WORK/mnt" "$WORK/disk"; do ! mountpoint -q "$dir" || umount --lazy "$dir"; done
}
at_end leave
mkdir "$WORK/disk" "$WORK/mnt"

# io COMMAND...: through the iSCSI driver of QEMU, which checks what it reads.
io() {
    local args=() command
    for command in "$@"; do args+=(-c "$command"); done
    qemu-io -f raw -t none "${args[@]}" "${URI[m0]}" >"$WORK/io" 2>&1 && ! grep -Eqi 'fail|error' "$WORK/io"
}
does() { io "$@" || { cat "$WORK/io"; fail "$*"; }; }
does_not() { ! io "$@" || fail "succeeded: $*"; }
serve() {
    launch m0 "$NETRAID" target --json --listen 127.0.0.1:0 --lun "file:$WORK/mnt/lun:48MiB"
    URI[m0]=$(jq -r '.luns[0].uri' <<<"${READY[m0]}")
}

# A disk of 64 MiB that has space for 16 only, and says so when it is too late.
mount -t tmpfs -o size=16m none "$WORK/disk"
truncate -s 64M "$WORK/disk/image"
mkfs.ext4 -q -O ^has_journal "$WORK/disk/image"
mount -o loop "$WORK/disk/image" "$WORK/mnt"
serve
does 'write -P 1 0 4M' flush
does_not 'write -P 2 8M 24M' flush
# QEMU flushes only what it has written. What is overwritten is there: only the flush can fail.
for again in first second; do
    does_not 'write -P 1 0 4k' flush
    grep -q 'wrote 4096/4096' "$WORK/io" || fail "the $again write failed"
done
does_not 'write -f -P 1 0 4k'
does 'read -P 1 0 1M'
stop m0 2>/dev/null || true

mount -o remount,size=80m "$WORK/disk"
serve
does 'read -P 1 2M 1M' 'write -P 4 8M 16M' flush 'read -P 4 8M 16M' 'write -f -P 5 1M 4k' flush
stop m0
