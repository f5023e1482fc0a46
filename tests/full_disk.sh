# The disk under a file LUN fills up: writes end as "no space", nothing that was written is lost,
# the target goes on, and space that is given back can be written again.
. "$(dirname "$0")/lib.sh"
need jq qemu-io losetup mkfs.ext4
[ "$(id -u)" = 0 ] || { say "needs root for mount"; exit 77; }

leave() {
    ! mountpoint -q "$WORK/mnt" || umount --lazy "$WORK/mnt"
}
at_end leave
mkdir "$WORK/mnt"

# io COMMAND...: through the iSCSI driver of QEMU, which checks what it reads.
io() {
    local args=() command
    for command in "$@"; do args+=(-c "$command"); done
    qemu-io -f raw -t none "${args[@]}" "${URI[m0]}" >"$WORK/io" 2>&1 && ! grep -Eqi 'fail|error' "$WORK/io"
}
does() { io "$@" || { cat "$WORK/io"; fail "$*"; }; }
has_no_space() {
    ! io "$@" || fail "there was space for $*"
    grep -q 'No space left' "$WORK/io" || { cat "$WORK/io"; fail "not told of space: $*"; }
}

# fills OPTIONS: the story, on the file system at mnt with less than 16 MiB.
fills() {
    launch m0 "$NETRAID" target --json --listen 127.0.0.1:0 --lun "file:$WORK/mnt/lun:64MiB$1"
    URI[m0]=$(jq -r '.luns[0].uri' <<<"${READY[m0]}")
    does 'write -P 1 0 4M' flush
    has_no_space 'write -P 2 8M 4M' 'write -P 2 12M 4M' 'write -P 2 16M 4M' 'write -P 2 20M 4M'
    has_no_space 'write -f -P 3 24M 2M' 'write -f -P 3 26M 2M'
    does 'read -P 1 0 4M' 'write -P 4 1M 1M' flush
    does 'discard 8M 56M'
    does 'write -f -P 5 32M 2M' flush 'read -P 5 32M 2M' 'read -P 4 1M 1M' 'read -P 1 2M 2M'
    stop m0
    target_again "$1"
    does 'read -P 5 32M 2M' 'read -P 4 1M 1M' 'read -P 1 2M 2M' 'read -P 0 8M 4M'
    stop m0
}
target_again() {
    launch m0 "$NETRAID" target --json --listen 127.0.0.1:0 --lun "file:$WORK/mnt/lun:64MiB$1"
    URI[m0]=$(jq -r '.luns[0].uri' <<<"${READY[m0]}")
}

mount -t tmpfs -o size=14m none "$WORK/mnt"
fills ""
umount "$WORK/mnt"

truncate -s 16M "$WORK/ext4"
mkfs.ext4 -q -m 0 "$WORK/ext4"
for options in "" ,sync ,direct; do
    mount -o loop "$WORK/ext4" "$WORK/mnt"
    rm -f "$WORK/mnt/lun"
    say "ext4 $options"
    fills "$options"
    umount "$WORK/mnt"
done
