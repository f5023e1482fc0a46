# A disk hangs under dm-multipath and load: the kernel gives commands up and aborts them, and when
# the disk serves again no written byte is lost.
. "$(dirname "$0")/lib.sh"

control=unix:$WORK/control.sock
serve disk 256MiB --listen 10.0.3.2:3260 --control "$control"
guest_start <<'GUEST'
modprobe -a dm_multipath dm_round_robin dm_service_time
# Nothing is given up when no path serves.
sed -i 's/^defaults {/&\n    no_path_retry queue/' /etc/multipath.conf
start_iscsid
login 10.0.2.2
expect 2 "$(disks | wc -l)" "paths"
for disk in $(disks); do
    echo 3 >/sys/block/$disk/device/timeout
    echo 3 >/sys/block/$disk/device/eh_timeout
done
multipathd
for _ in $(seq 100); do
    map=$(ls /dev/mapper/mpath* 2>/dev/null) && [ "$(multipathd show paths raw format '%t %T' | grep -c 'active ready')" = 2 ] && break
    sleep 0.2
done
fio --name=load --filename=$map --size=64M --rw=randwrite --bs=16k --direct=1 --ioengine=libaio --iodepth=8 \
    --verify=crc32c --verify_fatal=1 --rate=8m --output=/tmp/fio &
load=$!
until [ "$(awk '{ print $5 }' "/sys/block/$(basename "$(readlink -f $map)")/stat")" -gt 50 ]; do sleep 0.2; done
tell loaded
# Commands that took too long, as the kernel counts them.
given_up() { local sum=0 disk; for disk in $(disks); do ((sum += $(cat /sys/block/$disk/device/iotmo_cnt))) || true; done; say $sum; }
deadline=$((SECONDS + 60))
until [ "$(given_up)" -gt 0 ]; do
    [ $SECONDS -lt $deadline ] || fail "the kernel gave no command up"
    sleep 0.5
done
tell waited
wait $load || { cat /tmp/fio; multipath -ll; fail "fio lost data or had an error"; }
say "$(given_up) commands took too long"
multipath -ll
multipath -F || { sleep 1; multipath -F; }
logout
GUEST
guest_tells loaded
"$NETRAID" filter "$control" 0 hang
guest_tells waited
# Long enough for the kernel to come to the end of what it tries.
sleep 8
counter() { "$NETRAID" status --json "$control" | jq ".counters.$1"; }
[ "$(counter task_functions)" -gt 0 ] || fail "the kernel aborted nothing"
"$NETRAID" filter "$control" 0 none
# What was aborted is tried again on the other path.
guest_end 'I/O error, dev sd|device-mapper: multipath|detected conn error'
say "$(counter task_functions) task management functions, $(counter aborted_tasks) tasks aborted"
stop disk
