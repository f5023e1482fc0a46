# `netraid stop` pulls nobody's disk away: it is refused while the file of the FUSE mount is open (here by a loop
# device with a file system), while NBD clients are connected, and, of a target, while initiators are logged in.
# With --force it ends all the same, and says whom it cut off; and it says how the end was.
. "$(dirname "$0")/lib.sh"
need jq losetup mkfs.ext4 fsck.ext4 qemu-io cmp
[ "$(id -u)" = 0 ] || { say "needs root for losetup and mount"; exit 77; }

mkdir "$WORK/fuse" "$WORK/mnt"
LOOP=
leave() {
    ! mountpoint -q "$WORK/mnt" || umount --lazy "$WORK/mnt"
    [ -z "$LOOP" ] || losetup --detach "$LOOP"
    ! mountpoint -q "$WORK/fuse" || umount --lazy "$WORK/fuse"
}
at_end leave

# attach_all: the array with both exports; sets NBD, FILE and CONTROL.
attach_all() {
    attach --fuse "$WORK/fuse" "${URLS[@]}"
    FILE=$(jq -r '.exports[] | select(.kind == "fuse") | .path' <<<"${READY[engine]}")
}
# ended NAME STATUS: the process has ended by itself, with that exit code.
ended() {
    local child=${PID[$1]} status=0
    unset "PID[$1]"
    await_end "$child" 30 || fail "$1 does not end"
    wait "$child" || status=$?
    expect "$2" "$status" "exit code of $1"
}

targets 3 128MiB
mapfile -t URLS < <(members 3)
"$NETRAID" create vol --level 5 "${URLS[@]}" >/dev/null

attach_all
LOOP=$(losetup --find --show "$FILE")
mkfs.ext4 -q "$LOOP"
mount "$LOOP" "$WORK/mnt"
head -c 20000000 /dev/urandom >"$WORK/data"
cp "$WORK/data" "$WORK/mnt/data"
refused "array 'vol' is in use by .*open file.*--force" "$NETRAID" stop "$CONTROL"
expect optimal "$(state)" "state after the refusal"
umount "$WORK/mnt"
refused "in use by 1 open file" "$NETRAID" stop "$CONTROL"
losetup --detach "$LOOP"
"$NETRAID" stop "$CONTROL"
ended engine 0

attach_all
LOOP=$(losetup --find --show "$FILE")
fsck.ext4 -fn "$LOOP"
mount -o ro "$LOOP" "$WORK/mnt"
cmp "$WORK/data" "$WORK/mnt/data"
umount "$WORK/mnt"
losetup --detach "$LOOP"
LOOP=
# A client that has asked for nothing for a while is a client: a disk that is idle.
{
    printf 'write -P 1 0 512\n'
    until [ -e "$WORK/go" ]; do sleep 0.05; done
} | qemu-io -f raw -t none "$NBD" >"$WORK/client" 2>&1 &
client=$!
until grep -q 'wrote 512' "$WORK/client"; do kill -0 $client || fail "no client"; sleep 0.02; done
refused "in use by 1 NBD client; " "$NETRAID" stop "$CONTROL"
exec {held}<"$FILE"
refused "in use by 1 NBD client and 1 open file" "$NETRAID" stop "$CONTROL"
"$NETRAID" stop --json --force "$CONTROL" | tee "$WORK/end"
expect '{"nbd_clients":1,"open_files":1}' "$(jq -c .cut_off "$WORK/end")" "who was cut off"
ended engine 0
exec {held}<&-
: >"$WORK/go"
wait $client || true

# A signal asks nobody.
attach_all
exec {held}<"$FILE"
stop engine
exec {held}<&-

# The last flush fails: neither the command nor the array ends well.
attach "${URLS[@]}"
load write 4MiB 7 >/dev/null
crash m0 m1
status=0
text=$("$NETRAID" stop "$CONTROL" 2>&1) || status=$?
say "$text"
expect 1 "$status" "exit code of stop when not all is stable"
ended engine 1

# A target with a session: a member of a running array.
launch lone "$NETRAID" target --json --listen 127.0.0.1:0 --lun ram:64MiB --lun ram:64MiB --control "unix:$WORK/lone.sock"
mapfile -t lone < <(jq -r '.luns[].uri' <<<"${READY[lone]}")
"$NETRAID" create lone --level 1 "${lone[@]}" >/dev/null
attach "${lone[@]}"
refused "in use by 2 sessions .*--force" "$NETRAID" stop "unix:$WORK/lone.sock"
expect optimal "$(state)" "state of its array"
"$NETRAID" stop "$CONTROL"
ended engine 0
"$NETRAID" stop "unix:$WORK/lone.sock"
ended lone 0
