# A SANITIZE of a block device needs --state, where its marker is kept; a target that is killed in
# the middle goes on when it starts, and the medium cannot be had until it is done.
. "$(dirname "$0")/lib.sh"
need jq losetup iscsi-test-cu iscsi-readcapacity16 iscsi-inq
[ "$(id -u)" = 0 ] || { say "needs root for losetup"; exit 77; }

MIB=$((1 << 20))
state=$WORK/state
mkdir "$state"
LOOP=
leave() { [ -z "$LOOP" ] || losetup --detach "$LOOP" 2>/dev/null || true; }
at_end leave
# disk NAME MIBS
disk() {
    leave
    image=$WORK/$1
    SIZE=$(($2 * MIB))
    LAST=$((SIZE - 8 * MIB)) # the suite writes to the very end itself
    truncate -s $SIZE "$image"
    LOOP=$(losetup --find --show "$image")
}

# fill: what is to be erased, at the start and towards the end.
fill() {
    for at in 0 $LAST; do
        head -c $MIB /dev/urandom | dd of="$image" bs=1M seek=$((at / MIB)) conv=notrunc status=none
    done
    blockdev --flushbufs "$LOOP"
}
# serve [ARG...]
serve() {
    launch m0 "$NETRAID" target --json --listen 127.0.0.1:0 --lun "block:$LOOP" \
        --control "unix:$WORK/sock" "$@"
    URI[m0]=$(jq -r '.luns[0].uri' <<<"${READY[m0]}")
}
# sanitize TEST: asks for it by libiscsi's suite, in the background.
sanitize() {
    timeout 60 iscsi-test-cu -d -S -t "SCSI.Sanitize.$1" "${URI[m0]}" >"$WORK/suite" 2>&1 &
    suite=$!
}
markers() { find "$state" -name '*.sanitize' | wc -l; }
part() { dd if="$image" bs=1M skip=$(($1 / MIB)) count=1 status=none | md5sum; }
zeros=$(head -c $MIB /dev/zero | md5sum)
# begins TEST: waits until a part of the medium is erased. The suite writes something before.
begins() {
    local deadline=$((SECONDS + 10))
    until [ "$(markers)" = 1 ] && case $1 in
        BlockErase) [ "$(part 0)" = "$zeros" ] ;;
        Overwrite) [ "$(part $((16 * MIB)))" != "$zeros" ] ;;
    esac; do
        [ $SECONDS -lt $deadline ] || { cat "$WORK/suite"; fail "nothing is erased"; }
        sleep 0.02
    done
}
has_capacity() { iscsi-readcapacity16 "${URI[m0]}" 2>&1 | grep -q "Total size:$SIZE"; }

# killed_in_the_middle TEST FILTER: the first part is gone, the last one is not.
killed_in_the_middle() {
    local last deadline
    fill
    last=$(part $LAST)
    serve --state "$state" --filter "$2"
    sanitize "$1"
    begins "$1"
    crash m0
    kill $suite 2>/dev/null || true
    wait $suite 2>/dev/null || true
    expect "$last" "$(part $LAST)" "the last part of a medium that is half erased"
    expect 1 "$(markers)" "markers"
    # Slow, so that it is seen to be under way; INQUIRY is answered.
    serve --state "$state" --filter delay=300ms:write
    ! has_capacity || fail "a medium that is half erased is served"
    iscsi-inq "${URI[m0]}" | grep -q DIRECT_ACCESS || fail "INQUIRY is not answered"
    expect false "$("$NETRAID" status --json "unix:$WORK/sock" | jq '.luns[0].sanitize.failed')" "what the status shows"
    stop m0
    serve --state "$state"
    deadline=$((SECONDS + 10))
    until [ "$(markers)" = 0 ]; do
        [ $SECONDS -lt $deadline ] || fail "the marker stays"
        sleep 0.05
    done
    has_capacity || fail "a medium that is erased is not served"
    stop m0
}

# More than is erased at a time.
disk image 288
# Without a place for the marker it is not offered.
serve
sanitize BlockErase
wait $suite || true
grep -qi 'not implemented\|not supported\|SKIPPED' "$WORK/suite" || { cat "$WORK/suite"; fail "SANITIZE without --state"; }
stop m0

say "block erase"
killed_in_the_middle BlockErase delay=500ms:write
cmp -n $SIZE "$image" /dev/zero || fail "something is left"

say "overwrite"
disk small 48
killed_in_the_middle Overwrite rate=32MiB/s:write
# Each block has the same pattern.
cmp -n $((SIZE - 512)) -i 0:512 "$image" "$image" || fail "something is left"

# The marker is the disk's, also as another LUN; one that cannot be read keeps the target from starting.
fill
serve --state "$state" --filter delay=2s:write
sanitize BlockErase
deadline=$((SECONDS + 10))
until [ "$(markers)" = 1 ]; do
    [ $SECONDS -lt $deadline ] || fail "there is no marker"
    sleep 0.02
done
crash m0
kill $suite 2>/dev/null || true
marker=$(find "$state" -name '*.sanitize')
cp "$marker" "$WORK/marker"
say rubbish >"$marker"
refused 'is damaged.*remove the file' "$NETRAID" target --listen 127.0.0.1:0 --lun ram:1MiB --lun "block:$LOOP" --state "$state"
cp "$WORK/marker" "$marker"
launch m0 "$NETRAID" target --json --listen 127.0.0.1:0 --lun ram:1MiB --lun "block:$LOOP" --state "$state"
deadline=$((SECONDS + 10))
until [ "$(markers)" = 0 ]; do
    [ $SECONDS -lt $deadline ] || fail "the marker stays"
    sleep 0.05
done
stop m0
cmp -n $SIZE "$image" /dev/zero || fail "something is left"

# A target on another disk does not find it.
cp "$WORK/marker" "$marker"
disk other 48 # at the same path, unless somebody else took it
fill
sum=$(md5sum <"$WORK/other")
serve --state "$state"
has_capacity || fail "another disk is taken for the one that is half erased"
stop m0
expect "$sum" "$(md5sum <"$WORK/other")" "what is on another disk"
