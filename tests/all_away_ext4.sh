# A file system on the FUSE export outlives that all members are away: their targets stand still, and are killed and started
# again. Programs that write and verify files see no error, and fsck finds nothing.
. "$(dirname "$0")/lib.sh"
need jq fio losetup mkfs.ext4 fsck.ext4
[ "$(id -u)" = 0 ] || { say "needs root for losetup and mount"; exit 77; }

STILL_S=$([ "$NIGHTLY" = 1 ] && echo 30 || echo 7)

umount_all() {
    ! mountpoint -q "$WORK/mnt" || umount "$WORK/mnt"
    [ -z "${loop:-}" ] || losetup --detach "$loop"
    loop=
}
at_end umount_all

targets 3 96MiB
mapfile -t URLS < <(members 3)
"$NETRAID" create vol --level 5 "${URLS[@]}" >/dev/null
mkdir "$WORK/fuse" "$WORK/mnt"
attach --fuse "$WORK/fuse" "${URLS[@]}"
file=$(jq -r '.exports[] | select(.kind == "fuse") | .path' <<<"${READY[engine]}")
loop=$(losetup --find --show "$file")
mkfs.ext4 -q "$loop"
mount "$loop" "$WORK/mnt"

stand_still() {
    kill -STOP "${PID[m0]}" "${PID[m1]}" "${PID[m2]}"
    sleep "$STILL_S"
    kill -CONT "${PID[m0]}" "${PID[m1]}" "${PID[m2]}"
}
restart_at_once() {
    crash m0 m1 m2
    targets 3 96MiB
}

cd "$WORK"
for how in stand_still restart_at_once; do
    fio --name=files --directory="$WORK/mnt" --nrfiles=8 --size=24m --rw=randwrite --bs=4k --ioengine=psync --fsync=32 \
        --time_based --runtime=$((STILL_S + 8)) --verify=crc32c --verify_backlog=64 --output="$WORK/files.txt" &
    users=$!
    sleep 3
    $how
    wait $users || {
        cat "$WORK/files.txt"
        fail "a program saw an error while all members were away ($how)"
    }
done
umount "$WORK/mnt"
fsck.ext4 -fn "$loop"
umount_all
await 60 is_in_state 0 in_sync
expect 0 "$("$NETRAID" scrub --json "$CONTROL" --start --rate max --wait | jq '.wrong + .unrepaired')" "what is wrong"
stop engine
