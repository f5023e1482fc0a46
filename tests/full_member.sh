# The disks below members of an array with a log fill up: writes that need new space end as "no
# space", the members stay, what was written is there, and space that is given back can be used.
. "$(dirname "$0")/lib.sh"
need jq qemu-io losetup mkfs.ext4
[ "$(id -u)" = 0 ] || { say "needs root for mount"; exit 77; }

leave() {
    ! mountpoint -q "$WORK/mnt" || umount --lazy "$WORK/mnt"
}
at_end leave
mkdir "$WORK/mnt"

io() {
    local args=() command
    for command in "$@"; do args+=(-c "$command"); done
    qemu-io -f raw -t none "${args[@]}" "$NBD" >"$WORK/io" 2>&1 && ! grep -Eqi 'fail|error' "$WORK/io"
}
does() { io "$@" || { cat "$WORK/io"; fail "$*"; }; }
has_no_space() {
    ! io "$@" || fail "there was space for $*"
    grep -q 'No space left' "$WORK/io" || { cat "$WORK/io"; fail "not told of space: $*"; }
}
healthy() {
    expect optimal "$(state)" "state"
    expect in_sync "$(member_state 3)" "the member without space"
}
# full_target NAME: a member on the small file system.
full_target() {
    launch "$1" "$NETRAID" target --json --listen 127.0.0.1:0 --lun "file:$WORK/mnt/$1:64MiB"
    URI[$1]=$(jq -r '.luns[0].uri' <<<"${READY[$1]}")
}

# fills: the story, on the file system at mnt with less than 16 MiB. A stripe has 192 KiB.
fills() {
    targets 3
    full_target m3
    mapfile -t URLS < <(members 4)
    "$NETRAID" create vol --force --level 5 "${URLS[@]}" >/dev/null
    attach "${URLS[@]}"
    does 'write -P 1 0 12M' flush
    has_no_space 'write -P 2 12M 12M' 'write -P 2 24M 12M' 'write -P 2 36M 12M'
    healthy
    # Blocks that have their place already, one by one.
    does 'write -P 3 4096 4k' 'write -P 3 1M 8k' flush 'read -P 3 4096 4k' 'read -P 1 2M 10M'
    does 'write -P 6 6M 6M' 'write -P 1 6M 6M' 'write -P 6 6M 6M' flush 'read -P 6 6M 6M' 'read -P 1 2M 4M'
    # Long enough to be brought home.
    local deadline=$((SECONDS + 20))
    until "$NETRAID" status --json "$CONTROL" | jq -e '.log.dirty_bytes == 0' >/dev/null; do
        [ $SECONDS -lt $deadline ] || fail "not brought home"
        sleep 0.1
    done
    healthy
    # The array gives space back when it has time: soon, not at once.
    does 'discard 12M 36M' flush
    deadline=$((SECONDS + 60))
    until [ "$(df --output=avail -k "$WORK/mnt" | tail -n 1)" -gt 2048 ]; do
        [ $SECONDS -lt $deadline ] || fail "space is not given back"
        sleep 0.1
    done
    does 'write -P 4 24M 3M' flush 'read -P 4 24M 3M'
    healthy
    stop engine
    attach "${URLS[@]}"
    does 'read -P 3 4096 4k' 'read -P 1 2M 4M' 'read -P 6 6M 6M' 'read -P 4 24M 3M' 'read -P 0 12M 12M'
    expect 0 "$("$NETRAID" scrub --json "$CONTROL" --start --rate max --wait | jq '.wrong + .unrepaired')" "wrong"
    healthy
    stop engine
    for index in 0 1 2 3; do stop m$index; done
}

say tmpfs
mount -t tmpfs -o size=14m none "$WORK/mnt"
fills
umount "$WORK/mnt"

say ext4
truncate -s 16M "$WORK/ext4"
mkfs.ext4 -q -m 0 "$WORK/ext4"
mount -o loop "$WORK/ext4" "$WORK/mnt"
fills

umount "$WORK/mnt"

say "more members without space than the level bears"
mount -t tmpfs -o size=28m none "$WORK/mnt"
# waits_for_space WANTED: until status says so of members 3 and 4, or that nothing waits.
waits_for_space() {
    local deadline=$((SECONDS + 30))
    until [ "$("$NETRAID" status --json "$CONTROL" | jq -c '.no_space.members')" = "$1" ]; do
        [ $SECONDS -lt $deadline ] || fail "no_space: $("$NETRAID" status --json "$CONTROL" | jq -c .no_space)"
        sleep 0.1
    done
}
targets 3
full_target m3
full_target m4
mapfile -t URLS < <(members 5)
"$NETRAID" create vol --force --level 5 "${URLS[@]}" >/dev/null
attach "${URLS[@]}"
does 'write -P 1 0 24M' flush
! io 'write -P 2 32M 24M' || fail "there was space for everything"
# What a write that failed gives back is not for the next one.
head -c 28M /dev/zero >"$WORK/mnt/filler" 2>/dev/null || true
# One block each of stripes of 256 KiB that hold nothing: acknowledged, and then there is no space for them.
small=()
for at in $(seq 64 160); do
    small+=("write -P 9 $((at * 256 * 2))k 4k")
done
io "${small[@]}" || grep -q 'No space left' "$WORK/io" || fail "not told of space"
waits_for_space '[3,4]'
# On a busy machine a member may be suspect for a moment.
deadline=$((SECONDS + 10))
until [ "$(state)" = optimal ]; do
    [ $SECONDS -lt $deadline ] || fail "state with two members without space: $(state)"
    sleep 0.1
done
has_no_space 'write -P 9 100M 4k'
"$NETRAID" status "$CONTROL" >"$WORK/status"
grep -q 'no space left on members 3, 4' "$WORK/status" || fail "status: $(cat "$WORK/status")"
does 'read -P 1 0 24M' "read -P 9 $((64 * 512))k 4k" 'write -P 5 1M 4k' flush
crash engine
attach "${URLS[@]}"
does 'read -P 1 2M 22M' 'read -P 5 1M 4k' "read -P 9 $((64 * 512))k 4k"
waits_for_space '[3,4]'
stop engine
attach "${URLS[@]}"
does 'read -P 1 2M 22M' 'read -P 5 1M 4k' "read -P 9 $((64 * 512))k 4k"
does 'discard 4M 20M' flush
waits_for_space null
does 'write -P 9 100M 4k' flush "read -P 9 $((64 * 512))k 4k" 'read -P 1 2M 2M'
# An engine that has just begun may hear of one member without space first, and do without that one.
case $(state) in optimal | degraded) ;; *) fail "state with space again: $(state)" ;; esac
expect 0 "$("$NETRAID" scrub --json "$CONTROL" --start --rate max --wait | jq '.wrong + .unrepaired')" "wrong"
stop engine
for index in 0 1 2 3 4; do stop m$index; done

say "a disk that is full already is refused"
umount "$WORK/mnt"
mount -t tmpfs -o size=16m none "$WORK/mnt"
targets 3
head -c 32M /dev/zero >"$WORK/mnt/filler" 2>/dev/null || true
# Room for labels, not for a log.
truncate -s -256K "$WORK/mnt/filler"
full_target m3
mapfile -t URLS < <(members 4)
refused 'reserving space for the log and the tables' "$NETRAID" create vol --force --level 5 "${URLS[@]}"
