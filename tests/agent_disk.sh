# Agents on raw block devices: data is there after they are killed, removed data is nobody's, and devices that
# somebody uses, or that are another agent's, are refused by name.
. "$(dirname "$0")/lib.sh"
need jq losetup mkfs.ext4
[ "$(id -u)" = 0 ] || { say "needs root for losetup"; exit 77; }

LOOPS=()
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
    truncate -s 2G "$WORK/$name.img"
    LOOP=$(losetup --find --show "$@" "$WORK/$name.img")
    LOOPS+=("$LOOP")
}
# agent N: starts one on its device, where it listened before.
declare -A DISK=() API=() PORTAL=()
agent() {
    [ -z "${EVENTS[agent$1]:-}" ] || exec {EVENTS[agent$1]}<&-
    launch "agent$1" "$NETRAID" agent run --json --disk "${DISK[$1]}" --state "$WORK/state$1" \
        --rate 500MiB --host "host$1" --listen "${API[$1]:-127.0.0.1:0}" \
        --portal "${PORTAL[$1]:-127.0.0.1:0}" --mediator "$WORK/mediator/agent.access"
    API[$1]=$(jq -r .api <<<"${READY[agent$1]}")
    API[$1]=${API[$1]#*://}
    PORTAL[$1]=$(jq -r .portal <<<"${READY[agent$1]}")
}
soon() {
    local deadline=$((SECONDS + 60))
    until "$@"; do
        [ $SECONDS -lt $deadline ] || fail "not in time: $*"
        sleep 0.1
    done
}
known() { [ "$("$NETRAID" mediator status --json --access "$ADMIN" | jq .reachable)" = "$1" ]; }
not_started() { refused "$1" "$NETRAID" agent run "${@:2}" --rate 1MiB --listen 127.0.0.1:0 --portal 127.0.0.1:0; }

launch mediator "$NETRAID" mediator run --json --dir "$WORK/mediator" --listen 127.0.0.1:0
export NETRAID_ACCESS=$WORK/mediator/client.access
ADMIN=$WORK/mediator/admin.access

# What is on a device keeps it from being taken.
loop used
mkfs.ext4 -q "$LOOP"
mkdir "$WORK/mnt"
mount "$LOOP" "$WORK/mnt"
not_started "$LOOP: is in use .mounted at $WORK/mnt" --disk "$LOOP" --state "$WORK/none"
umount "$WORK/mnt"
not_started "$LOOP: there is an ext2, ext3 or ext4 file system on it" --disk "$LOOP" --state "$WORK/none"
loop large --sector-size 4096
not_started "blocks of 512 bytes are smaller than the device's own, 4096" --disk "$LOOP" --state "$WORK/none"

for i in 1 2 3; do
    loop "disk$i"
    DISK[$i]=$LOOP
done
"$NETRAID" agent calibrate --disk "${DISK[1]}" --state "$WORK/state1"
for i in 1 2 3; do agent $i; done
soon known 3
not_started "${DISK[1]}: is in use" --disk "${DISK[1]}" --state "$WORK/none"

for len in 1 4095 300000 33554433; do
    head -c $len /dev/urandom >"$WORK/in.$len"
    "$NETRAID" put -p --level 5 --members 3 "$WORK/in.$len" "/a/$len"
done
same() {
    local len
    for len in "$@"; do "$NETRAID" cat "/a/$len" | cmp - "$WORK/in.$len" || fail "/a/$len"; done
}
same 1 4095 300000 33554433

crash agent1 agent2 agent3
not_started "is not the one that the state directory is of" --disk "${DISK[1]}" --state "$WORK/state2"
for i in 1 2 3; do agent $i; done
soon known 3
same 1 4095 300000 33554433
stop agent2
agent 2
soon known 3
same 1 4095 300000 33554433

# What one leaves, the next one has.
"$NETRAID" rm /a/33554433 >/dev/null
"$NETRAID" volume create -p /b/volume --size 64MiB >/dev/null
launch volume "$NETRAID" volume attach --json /b/volume --nbd "unix:$WORK/nbd.sock" --control "unix:$WORK/control.sock"
stop volume
same 1 4095 300000
agree() { "$NETRAID" mediator check --json --access "$ADMIN" >"$WORK/said" 2>/dev/null; }
soon agree
expect 0 "$(jq '.differences | length' "$WORK/said")" "differences"

# One disk begins anew, by force and with a state of its own: the others carry the data.
stop agent3
rm -r "$WORK/state3"
not_started "is not the one that the state directory is of" --disk "${DISK[3]}" --state "$WORK/state3"
launch fresh "$NETRAID" agent run --json --disk "${DISK[3]}" --force --state "$WORK/state4" --rate 1MiB \
    --listen 127.0.0.1:0 --portal 127.0.0.1:0
expect 0 "$("$NETRAID" agent status --json --state "$WORK/state4" | jq .status.segments)" "segments"
same 1 4095 300000
