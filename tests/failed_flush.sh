# The disk below a file system fails to take what was written: the flush that finds out fails, and
# so does every later flush and FUA write until the file is opened again; the kernel would report
# it only once.
. "$(dirname "$0")/lib.sh"
need jq qemu-io losetup mkfs.ext4
[ "$(id -u)" = 0 ] || { say "needs root for mount"; exit 77; }

LOOP=
leave() {
    local dir
    [ -z "$LOOP" ] || losetup --detach "$LOOP"
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
# serve BACKING
serve() {
    launch m0 "$NETRAID" target --json --listen 127.0.0.1:0 --lun "$1" --control "unix:$WORK/sock"
    URI[m0]=$(jq -r '.luns[0].uri' <<<"${READY[m0]}")
}

mount -t tmpfs -o size=16m none "$WORK/disk"
# disk: a disk of 64 MiB that has space for 16 only, and says so when it is too late.
disk() {
    ! mountpoint -q "$WORK/mnt" || umount "$WORK/mnt"
    rm -f "$WORK/disk/image"
    mount -o remount,size=16m "$WORK/disk"
    truncate -s 64M "$WORK/disk/image"
    mkfs.ext4 -q -O ^has_journal "$WORK/disk/image"
    mount -o loop "$WORK/disk/image" "$WORK/mnt"
}
disk
serve "file:$WORK/mnt/lun:48MiB"
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
serve "file:$WORK/mnt/lun:48MiB"
does 'read -P 1 2M 1M' 'write -P 4 8M 16M' flush 'read -P 4 8M 16M' 'write -f -P 5 1M 4k' flush
stop m0

# lose BACKING: what was written back by itself was lost, and a FUA write of other bytes is the
# first to be told: whatever becomes of that write, nothing is called stable after it.
lose() {
    serve "$1"
    does 'write -P 1 0 4M' flush
    rm -f "$WORK/lost"
    # QEMU flushes when it ends, so that it has to stay until the bytes are lost.
    {
        printf 'write -P 2 8M 24M\n'
        until [ -e "$WORK/lost" ]; do sleep 0.05; done
        printf 'write -f -P 3 1M 4k\n'
    } | timeout 60 qemu-io -f raw -t none "${URI[m0]}" >"$WORK/io" 2>&1 &
    local writer=$!
    until grep -q 'wrote 25165824' "$WORK/io"; do
        kill -0 $writer || { cat "$WORK/io"; fail "$1: cannot write"; }
        sleep 0.05
    done
    sync -f "$WORK/mnt" 2>/dev/null || true
    : >"$WORK/lost"
    wait $writer || true
    cat "$WORK/io"
    does_not 'write -P 1 0 4k' flush
    grep -q 'wrote 4096/4096' "$WORK/io" || fail "$1: a plain write failed"
    does_not 'write -f -P 3 1M 4k'
    expect true "$("$NETRAID" status --json "unix:$WORK/sock" | jq '.luns[0].flush_failed')" "what the status shows"
    stop m0 2>/dev/null || true
}
for way in threads uring; do
    disk
    lose "file:$WORK/mnt/lun:48MiB,io=$way"
done
# A device that says once that a flush failed, and then no more: the flush that is a part of a FUA
# write may be the one.
for way in threads uring; do
    disk
    truncate -s 48M "$WORK/mnt/lun"
    LOOP=$(losetup --find --show "$WORK/mnt/lun")
    lose "block:$LOOP,io=$way"
    losetup --detach "$LOOP"
    LOOP=
done
