# fio reads back what it wrote at random, while a member is lost and replaced under it.
. "$(dirname "$0")/lib.sh"
need jq fio

array 5 5
size=96M
[ "$NIGHTLY" = 0 ] || size=200M
workload() {
    fio --name="$1" --ioengine=nbd --uri="$NBD" --size=$size --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
        --randseed="$2" --iodepth=16 --output="$WORK/fio.$1" "${@:3}" || {
        cat "$WORK/fio.$1"
        fail "fio $1"
    }
}
workload sequential 1 --rw=write --bs=1M
workload random 2 --rw=randwrite --bsrange=4k-128k --bs_unaligned=0
crash m2
workload degraded 3 --rw=randwrite --bsrange=4k-256k
expect degraded "$(state)" "state"

target spare
"$NETRAID" replace "$CONTROL" 2 "${URI[spare]}"
workload rebuilding 4 --rw=randwrite --bsrange=4k-128k
rebuilt
expect optimal "$(state)" "state"
workload rebuilt 5 --rw=randrw --bsrange=4k-128k
stop engine
