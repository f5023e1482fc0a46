# The log on one member is spoiled under an array that is running and has writes in it that are
# nowhere else; then the engine is killed. What was acknowledged is read, and the member is named.
. "$(dirname "$0")/lib.sh"
need jq fio

array 5 4
read -r log log_len < <("$NETRAID" examine --json "${URLS[0]}" |
    jq -r '.[0].label.regions[] | select(.name == "log") | "\(.offset) \(.len)"')
scrubbed() { "$NETRAID" scrub --json "$CONTROL" --start --rate max --wait; }
load write 24MiB 1
for member in 0 1 2 3; do
    # Blocks here and there: not enough of a stripe to be written as one.
    fio --name=small --ioengine=nbd --uri="$NBD" --rw=randwrite --bs=4k --size=24M --io_size=256k \
        --iodepth=8 --fsync=16 --randseed=$((member + 7)) --verify=crc32c --do_verify=0 \
        --verify_state_save=0 --output="$WORK/fio.out" || { cat "$WORK/fio.out"; fail "fio"; }
    # While it is dirty still: nothing comes home before a second without requests.
    dirty=$("$NETRAID" status --json "$CONTROL" | jq .log.dirty_bytes)
    head -c "$log_len" /dev/urandom | dd of="$WORK/m$member.img" bs=64K seek="$log" oflag=seek_bytes conv=notrunc \
        iflag=fullblock status=none
    crash engine
    [ "$dirty" -gt 0 ] || fail "nothing was dirty: the test shows nothing"
    say "member $member: $dirty bytes were in the log alone"
    attach "${URLS[@]}"
    next_event engine ".event == \"notice\" and (.text | test(\"member $member had wrong or no copies\"))"
    fio --name=small --ioengine=nbd --uri="$NBD" --rw=randwrite --bs=4k --size=24M --io_size=256k \
        --randseed=$((member + 7)) --verify=crc32c --verify_only --verify_fatal=1 \
        --verify_state_save=0 --output="$WORK/fio.out" || { cat "$WORK/fio.out"; fail "not what was written"; }
    end=$(scrubbed)
    expect 0 "$(jq .wrong <<<"$end")" "wrong blocks, pages and batches after that"
done
stop engine
