# Bytes that change on a member, of every kind, are noticed: what is read is right, and what was
# wrong is written again.
. "$(dirname "$0")/lib.sh"
need jq

array 5 4
# region NAME: its first byte and its length on a member.
region() {
    "$NETRAID" examine --json "${URLS[0]}" | jq -r ".[0].label.regions[] | select(.name == \"$1\") | \"\(.offset) \(.len)\""
}
# spoil MEMBER OFFSET LEN: other bytes.
spoil() {
    head -c "$3" /dev/urandom |
        dd of="$WORK/$1.img" bs=64K seek="$2" oflag=seek_bytes conv=notrunc iflag=fullblock status=none
}
# spoil_rows MEMBER ROW: four blocks, from ROW on, of each of the first 128 chunks.
spoil_rows() {
    local chunk
    for ((chunk = 0; chunk < 128; chunk++)); do spoil "$1" $((data + chunk * 65536 + $2 * 4096)) 16384; done
}
# home: waits until nothing is in the log.
home() {
    local deadline=$((SECONDS + 30))
    until "$NETRAID" status --json "$CONTROL" | jq -e '.log.dirty_bytes == 0 and .log.used_bytes == 0' >/dev/null; do
        [ $SECONDS -lt $deadline ] || fail "the log is not brought home"
        sleep 0.1
    done
}

read -r data _ < <(region data)
read -r map map_len < <(region map)
read -r sums sums_len < <(region sums)
read -r log log_len < <(region log)

say "data and parity, while it serves"
load write 24MiB 1
home
spoil_rows m1 0
load verify 24MiB 1
next_event engine '.event == "repaired" and .member == 1' >/dev/null
load verify 24MiB 1
# What is changed now relies on parity that is wrong in part.
load write 24MiB 1 --rewritten 2
load verify 24MiB 1 --rewritten 2
home
stop engine

say "data and parity, before a start"
# In other rows: parity that nobody reads is not written again, and one member may be wrong in each.
spoil_rows m2 4
attach "${URLS[@]}"
load verify 24MiB 1 --rewritten 2
stop engine

say "map and checksums, before a start"
spoil m3 "$map" "$map_len"
spoil m3 "$sums" "$sums_len"
attach "${URLS[@]}"
load verify 24MiB 1 --rewritten 2
load write 24MiB 3
load verify 24MiB 3
stop engine

say "the log of one member, after a crash"
rm -f "$WORK/nbd.sock"
serve() {
    rm -f "$WORK/nbd.sock"
    launch engine "$NETRAID" attach --json --nbd "unix:$WORK/nbd.sock" --control "$CONTROL" "${URLS[@]}"
}
"$NETRAID" create vol --force --level 5 "${URLS[@]}" >/dev/null
serve
launch client "$NETRAID" hammer --json "nbd+unix:///vol?socket=$WORK/nbd.sock" --len 24MiB --seed 1
next_event client '.event == "verified"' >/dev/null
for member in 0 1 2 3; do
    sleep 0.3
    crash engine
    spoil m$member "$log" "$log_len"
    serve
    next_event client '.event == "verified"'
done
stop client
stop engine
