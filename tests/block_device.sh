# A raw block device as a LUN: its own blocks, alone in using it, discards passed on.
. "$(dirname "$0")/lib.sh"
need jq qemu-io losetup mkfs.ext4 iscsi-readcapacity16 iscsi-test-cu strace
[ "$(id -u)" = 0 ] || { say "needs root for losetup"; exit 77; }

LOOPS=()
FLAGS=()
detach_all() {
    ! mountpoint -q "$WORK/mnt" || umount --lazy "$WORK/mnt"
    local loop
    for loop in "${LOOPS[@]}"; do losetup --detach "$loop" 2>/dev/null || true; done
}
at_end detach_all
# loop NAME [ARG...]: sets LOOP to a loop device over a new file.
loop() {
    local name=$1
    shift
    [ -e "$WORK/$name" ] || truncate -s 64M "$WORK/$name"
    LOOP=$(losetup --find --show "$@" "$WORK/$name")
    LOOPS+=("$LOOP")
}
# serve BACKING
serve() {
    launch m0 "$NETRAID" target --json --listen 127.0.0.1:0 --lun "$1"
    URI[m0]=$(jq -r '.luns[0].uri' <<<"${READY[m0]}")
}
io() {
    local args=() command
    for command in "$@"; do args+=(-c "$command"); done
    qemu-io -f raw -t none "${FLAGS[@]}" "${args[@]}" "${URI[m0]}" >"$WORK/io" 2>&1 && ! grep -Eqi 'fail|error' "$WORK/io"
}
does() { io "$@" || { cat "$WORK/io"; fail "$*"; }; }
serves_nothing() { refused "$1" "$NETRAID" target --listen 127.0.0.1:0 --lun "$2"; }

loop image
serve "block:$LOOP"
does 'write -P 7 0 8M' 'write -P 8 63M 1M' 'write -P 9 4608 512' flush
serves_nothing "$LOOP: is in use" "block:$LOOP"
used=$(stat -c %b "$WORK/image")
does 'read -P 7 0 4608' 'read -P 9 4608 512' 'read -P 7 5120 1M'
does 'discard 1M 7M' flush 'read -P 0 1M 7M' 'read -P 7 5120 64k' 'read -P 8 63M 1M'
[ "$(stat -c %b "$WORK/image")" -lt $((used - 10000)) ] || fail "the discard gave nothing back"
stop m0
[ "$(od -An -tu1 -j $((63 << 20)) -N 1 "$WORK/image" | tr -d ' ')" = 8 ] || fail "not on the device"

# A container or a policy may forbid io_uring: then threads serve the same device.
strace -f -qq -e trace=io_uring_setup -e inject=io_uring_setup:error=EPERM -o "$WORK/strace" \
    "$NETRAID" target --json --listen 127.0.0.1:0 --lun "block:$LOOP,ro" >"$WORK/forbidden" 2>"$WORK/log" &
forbidden=$!
until [ -s "$WORK/forbidden" ]; do kill -0 $forbidden || fail "$(<"$WORK/log")"; sleep 0.05; done
grep -q EPERM "$WORK/strace" || fail "nobody asked for a ring"
URI[forbidden]=$(jq -r '.luns[0].uri' "$WORK/forbidden")
qemu-io -r -f raw -t none -c 'read -P 8 63M 1M' "${URI[forbidden]}"
target=$(pgrep -P $forbidden)
kill "$target"
wait $forbidden || true
refused "io_uring cannot be used here: Operation not permitted.*io=threads does without it" \
    strace -f -qq -e trace=io_uring_setup -e inject=io_uring_setup:error=EPERM -o "$WORK/strace" \
    "$NETRAID" target --listen 127.0.0.1:0 --lun "block:$LOOP,io=uring"

serve "block:$LOOP,ro"
! io 'write 0 512' || fail "a write went through"
FLAGS=(-r)
does 'read -P 8 63M 1M'
FLAGS=()
stop m0

mkfs.ext4 -q "$LOOP"
mkdir "$WORK/mnt"
mount "$LOOP" "$WORK/mnt"
serves_nothing "$LOOP: is in use .mounted at $WORK/mnt" "block:$LOOP"
umount "$WORK/mnt"

loop protected --read-only
serves_nothing "$LOOP: is write protected; add ,ro" "block:$LOOP"
serve "block:$LOOP,ro"
FLAGS=(-r)
does 'read -P 0 0 1M'
FLAGS=()
stop m0

loop large --sector-size 4096
serves_nothing "blocks of 512 bytes are smaller than the device's own, 4096" "block:$LOOP,block=512"
serve "block:$LOOP"
iscsi-readcapacity16 "${URI[m0]}" | tee "$WORK/capacity"
grep -q '4096' "$WORK/capacity" || fail "blocks of 4096 bytes"
# QEMU's driver asserts on blocks of 4096 bytes; libiscsi's suite writes and compares.
timeout 60 iscsi-test-cu -d -s -t SCSI.CompareAndWrite.Simple "${URI[m0]}" >"$WORK/suite" 2>&1 &&
    ! grep -q FAILED "$WORK/suite" || { cat "$WORK/suite"; fail "blocks of 4096 bytes"; }
stop m0

serves_nothing "is not a block device; a file is file:" "block:$WORK/large"
serves_nothing "is not a regular file; a block device is block:" "file:$LOOP"
serves_nothing "there is no such device" "block:$WORK/none"
