# An array with a log that keeps a hundredth of its checksums in memory, and as few writes as it
# may: what was written at random is read, also after a crash, and a scrub finds nothing.
. "$(dirname "$0")/lib.sh"
need jq fio

# Checksums of 4 GiB a member are some 4,200 pages of 4 KiB.
array 5 4 4GiB
stop engine
refused '--write-cache 4.0 KiB: .*4.0 MiB' "$NETRAID" attach --nbd 127.0.0.1:0 --write-cache 4KiB "${URLS[@]}"
caches=(--write-cache 4MiB --checksum-cache 160KiB)
size=8m
[ "$NIGHTLY" = 0 ] || size=64m
workload() {
    fio --name=small --ioengine=nbd --uri="$NBD" --rw=randwrite --bs=4k --size=11g --io_size=$size \
        --iodepth=32 --randseed=5 --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
        --output="$WORK/fio.out" "$@" || { cat "$WORK/fio.out"; fail "fio $*"; }
}
attach "${caches[@]}" "${URLS[@]}"
workload --fsync=256 --do_verify=0 --end_fsync=1
crash engine
attach "${caches[@]}" "${URLS[@]}"
workload --verify_only
"$NETRAID" fail "$CONTROL" 2
workload --verify_only
stop engine
