# A LUN's identity is its bytes' own: it stays when their place gets another name or number, and no
# other bytes have it, whatever they are made from.
. "$(dirname "$0")/lib.sh"
need jq python3 iscsi-inq losetup mkfs.ext4
[ "$(id -u)" = 0 ] || { say "needs root for losetup"; exit 77; }

LOOPS=()
detach_all() {
    ! mountpoint -q "$WORK/mnt" || umount --lazy "$WORK/mnt"
    local loop
    for loop in "${LOOPS[@]}"; do losetup --detach "$loop" 2>/dev/null || true; done
}
at_end detach_all
loop() {
    LOOP=$(losetup --find --show "$1")
    LOOPS+=("$LOOP")
}

# identity BACKING [ARG...]: serial number and NAA designator, as an initiator is told.
identity() {
    local backing=$1 uri
    shift
    launch m0 "$NETRAID" target --json --listen 127.0.0.1:0 --iqn "${IQN:-iqn.2026-01.test:m0}" --lun "$backing" "$@"
    uri=$(jq -r '.luns[0].uri' <<<"${READY[m0]}")
    SERIAL=$(iscsi-inq -e 1 -c $((0x80)) "$uri" | sed -n 's/.*\[\(.*\)\].*/\1/p')
    NAA=$(iscsi-inq -e 1 -c $((0x83)) "$uri" | grep -A8 -i 'NAA' | grep -im1 'designator:')
    expect "$SERIAL" "$(jq -r '.luns[0].serial' <<<"${READY[m0]}")" "serial number in the ready document"
    [ -n "$SERIAL" ] && [ -n "$NAA" ] || fail "no identity of $backing"
    ID="$SERIAL $NAA"
    stop m0
}
# differs NAME: from all that came before.
SEEN=()
differs() {
    local other
    for other in "${SEEN[@]}"; do [ "$ID" != "$other" ] || fail "$1 has the identity of another disk: $ID"; done
    SEEN+=("$ID")
}

mkdir "$WORK/mnt" "$WORK/state"
truncate -s 64M "$WORK/fs"
mkfs.ext4 -q "$WORK/fs"
truncate -s 1M "$WORK/pad"

# A file has its own, by whatever name, LUN and target it is served.
loop "$WORK/fs"
mount "$LOOP" "$WORK/mnt"
identity "file:$WORK/mnt/a:8MiB"
differs "the first file"
first=$ID
identity "file:$WORK/mnt/a"
expect "$first" "$ID" "after a restart"
mv "$WORK/mnt/a" "$WORK/mnt/b"
IQN=iqn.2026-01.test:other identity "file:$WORK/mnt/b"
expect "$first" "$ID" "by another name, from another target"

# A copy is another disk, also one that takes everything along.
cp "$WORK/mnt/b" "$WORK/mnt/c"
identity "file:$WORK/mnt/c"
differs "a copy"
cp -a "$WORK/mnt/b" "$WORK/mnt/d"
identity "file:$WORK/mnt/d"
differs "a copy with all attributes"
identity "file:$WORK/mnt/d,serial=${first%% *}"
expect "$first" "$ID" "that takes the other one's place because it was told to"
identity "file:$WORK/mnt/d"
expect "$first" "$ID" "after that"

# So is a file that gets the number of one that was removed.
number=$(stat -c %i "$WORK/mnt/b")
rm "$WORK/mnt/b"
truncate -s 8M "$WORK/mnt/e"
expect "$number" "$(stat -c %i "$WORK/mnt/e")" "the number that is used again"
identity "file:$WORK/mnt/e"
differs "a file in the place of one that was removed"

# The file system comes back as another device.
last=$ID
umount "$WORK/mnt"
losetup --detach "$LOOP"
loop "$WORK/pad"
loop "$WORK/fs"
mount "$LOOP" "$WORK/mnt"
identity "file:$WORK/mnt/e"
expect "$last" "$ID" "on a disk that has another number"
umount "$WORK/mnt"

# The first files of two file systems that are alike, as in two guests that were made from one image.
for guest in 1 2; do
    mkfs.ext4 -qF "$WORK/fs"
    mount "$LOOP" "$WORK/mnt"
    identity "file:$WORK/mnt/a:8MiB"
    differs "the disk of guest $guest"
    umount "$WORK/mnt"
done

# So are files that the target did not make, where numbers of disk and file come again: on two file systems
# one after the other, and in two directories of one.
for guest in 1 2; do
    mkfs.ext4 -qF "$WORK/fs"
    mount "$LOOP" "$WORK/mnt"
    truncate -s 8M "$WORK/mnt/a"
    numbers[guest]=$(stat -c '%d %i' "$WORK/mnt/a")
    identity "file:$WORK/mnt/a"
    differs "the file on file system $guest"
    umount "$WORK/mnt"
done
expect "${numbers[1]}" "${numbers[2]}" "the numbers that are used again"
mount "$LOOP" "$WORK/mnt"
mkdir "$WORK/mnt/d1" "$WORK/mnt/d2"
truncate -s 8M "$WORK/mnt/d1/a"
number=$(stat -c %i "$WORK/mnt/d1/a")
identity "file:$WORK/mnt/d1/a"
differs "the file of one directory"
rm "$WORK/mnt/d1/a"
truncate -s 8M "$WORK/mnt/d2/b"
expect "$number" "$(stat -c %i "$WORK/mnt/d2/b")" "the number that is used again in another directory"
identity "file:$WORK/mnt/d2/b"
differs "the file of another directory"
umount "$WORK/mnt"

# Where the file system keeps no attributes the log says where the identity of a file is that was renamed.
mount -t ramfs none "$WORK/mnt"
identity "file:$WORK/mnt/a:8MiB"
first=$ID
mv "$WORK/mnt/a" "$WORK/mnt/b"
identity "file:$WORK/mnt/b"
grep -q "keeps no attributes.*rename that to '$WORK/mnt/b.identity'" "$WORK/m0.err" || fail "the log says nothing of a file that was renamed"
mv "$WORK/mnt/a.identity" "$WORK/mnt/b.identity"
identity "file:$WORK/mnt/b"
expect "$first" "$ID" "of a file that its identity was moved along with"
umount "$WORK/mnt"

# A block device keeps its own in the directory of --state, whatever it is called.
for number in 1 2; do
    truncate -s 8M "$WORK/disk$number"
    loop "$WORK/disk$number"
    disks[number]=$LOOP
done
identity "block:${disks[1]}" --state "$WORK/state"
differs "a block device"
disk=$ID
IQN=iqn.2026-01.test:other identity "block:${disks[1]}" --state "$WORK/state"
expect "$disk" "$ID" "of a block device, from another target"
identity "block:${disks[2]}" --state "$WORK/state"
differs "another block device"

# What is set is set, in numbers that fit; two disks of one target cannot have the same.
identity "ram:1MiB,serial=WD-42.x"
expect "WD-42.x" "$SERIAL" "the serial number that was given"
refused 'LUN 1: has the serial number of LUN 0' "$NETRAID" target --listen 127.0.0.1:0 \
    --lun "ram:1MiB,serial=A" --lun "ram:1MiB,serial=A"
# What is refused at last has made no file, and given no disk an identity.
truncate -s 1M "$WORK/old.img"
: >"$WORK/taken"
refused 'cannot listen' "$NETRAID" target --listen 127.0.0.1:0 --lun "file:$WORK/old.img" \
    --lun "file:$WORK/new.img:1MiB" --control "unix:$WORK/taken"
[ ! -e "$WORK/new.img" ] || fail "a refused target made a file"
expect "" "$(python3 -c 'import os, sys; print(*os.listxattr(sys.argv[1]))' "$WORK/old.img")" "attributes of a refused disk"
launch m0 "$NETRAID" target --json --listen 127.0.0.1:0 --lun ram:1MiB,serial=A --control "unix:$WORK/m0.sock"
refused 'LUN 1: has the serial number of LUN 0' "$NETRAID" lun add "unix:$WORK/m0.sock" ram:1MiB,serial=A
expect B "$("$NETRAID" lun add --json "unix:$WORK/m0.sock" ram:1MiB,serial=B | jq -r .serial)" "of a LUN that is added"
stop m0
