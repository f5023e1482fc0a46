# dm-multipath over two portals: one goes dead under load, comes back, and no I/O fails.
. "$(dirname "$0")/lib.sh"

serve disk 512MiB --listen 10.0.3.2:3260
guest_start <<'GUEST'
modprobe -a dm_multipath dm_round_robin dm_service_time
start_iscsid
login 10.0.2.2
expect 2 "$(disks | wc -l)" "paths"
multipathd
map=
paths() { multipathd show paths raw format '%d %t %T' | grep -c 'active ready'; }
for _ in $(seq 100); do
    map=$(ls /dev/mapper/mpath* 2>/dev/null) && [ "$(paths)" = 2 ] && break
    sleep 0.2
done
[ -n "$map" ] || fail "no multipath device appeared"
multipath -ll
expect 2 "$(paths)" "ready paths"
mkfs.ext4 -q $map
mount $map /mnt
fio --name=load --directory=/mnt --size=64M --rw=randwrite --bs=16k --direct=1 --ioengine=libaio --iodepth=8 \
    --verify=crc32c --verify_fatal=1 --time_based --runtime=45 --rate=8m --output=/tmp/fio &
load=$!
sleep 2
tell loaded
reach() {
    local deadline=$((SECONDS + 60))
    until [ "$(paths || true)" = "$1" ]; do
        [ $SECONDS -lt $deadline ] || { multipath -ll; fail "never $1 ready paths"; }
        sleep 0.5
    done
}
# Writes that the load has had done.
written() { awk '{ print $5 }' "/sys/block/$(basename "$(readlink -f $map)")/stat"; }
reach 1
multipath -ll
before=$(written)
sleep 3
say "$(($(written) - before)) writes in 3 s over one path"
[ $(($(written) - before)) -gt 100 ] || fail "the load does not go on over one path"
reach 1
tell failed
reach 2
multipath -ll
wait $load || { cat /tmp/fio; fail "fio lost data or had an error"; }
umount /mnt
e2fsck -fn $map
multipath -F || { sleep 1; multipath -F; }
logout
GUEST
guest_tells loaded
# The active path. Without the address nothing answers, and nothing is refused either.
ip address del 10.0.2.2/24 dev tap0
guest_tells failed
ip address add 10.0.2.2/24 dev tap0
guest_end 'ping timeout|detected conn error|session recovery timed out|rejecting I/O to offline device|Failing path|I/O error, dev sd|device-mapper: multipath|Power-on'
stop disk
