# A target that is killed and started again under load: the stock initiator waits for it, and no
# written byte is lost.
. "$(dirname "$0")/lib.sh"

serve disk 256MiB
guest_start <<'GUEST'
start_iscsid
login 10.0.2.2
disk=$(disk)
fio --name=load --filename=$disk --size=128M --rw=randwrite --bs=16k --direct=1 --ioengine=libaio \
    --iodepth=16 --verify=crc32c --verify_fatal=1 --rate=16m --output=/tmp/fio &
load=$!
sleep 2
tell loaded
await back
wait $load || { cat /tmp/fio; fail "fio lost data or had an error"; }
logout
GUEST
guest_tells loaded
crash disk
serve disk 256MiB
tell_guest back
guest_end 'detected conn error'
stop disk
