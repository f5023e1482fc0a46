# A member whose label lies, or its written bits, under a right checksum, is left out and named, and nobody takes its numbers; of two
# halves of a mirror none can tell, and both are named.
. "$(dirname "$0")/lib.sh"
need jq
need python3

export PYTHONPATH=$WORK
cat >"$WORK/checksum.py" <<'PYTHON'
def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff
PYTHON

# forge MEMBER OFFSET FORMAT VALUE...: changes both copies of a member's label, and mends their checksums.
forge() {
    stop "$1"
    python3 - "$WORK/$1.img" "${@:2}" <<'PYTHON'
import struct, sys
from checksum import crc32c

path, changes = sys.argv[1], sys.argv[2:]

with open(path, "r+b") as disk:
    for place in (0, 32 << 10):
        disk.seek(place)
        label = bytearray(disk.read(4096))
        for at, form, value in zip(*[iter(changes)] * 3):
            struct.pack_into(form, label, int(at), int(value))
        label[12:16] = bytes(4)
        label[12:16] = struct.pack("<I", crc32c(struct.pack("<Q", place) + label))
        disk.seek(place)
        disk.write(label)
PYTHON
    target "$1"
}
# Where things are in a label, and the states of members 1 and 2.
GENERATION=144 EPOCH=152 STATE1=456 STATE2=496
huge=$((1 << 60))

serves_without_m0() {
    : >"$WORK/engine.err"
    attach --degraded "${URLS[@]}"
    expect degraded "$(state)" "state without the one that lies"
    grep -q "is left out as member 0" "$WORK/engine.err" || fail "nobody names who lies"
    load verify 8MiB 1
    stop engine
}

array 5 3
load write 8MiB 1
stop engine
for lie in "$GENERATION <Q $huge" "$GENERATION <Q $((huge - 1)) $EPOCH <Q $huge" \
    "$GENERATION <Q 1000 $STATE1 B 1 $STATE2 B 1"; do
    # shellcheck disable=SC2086
    forge m0 $lie
    serves_without_m0
    serves_without_m0
    "$NETRAID" examine --json "${URI[m1]}" | jq -e '[.. | .generation? // empty] | max < 1000' >/dev/null ||
        fail "another member has the number of the one that lies"
    attach --degraded "${URLS[@]}"
    "$NETRAID" replace "$CONTROL" 0 "${URI[m0]}" --force
    rebuilt
    expect optimal "$(state)" "state when the one that lied was made anew"
    load verify 8MiB 1
    stop engine
done

# One that says that the others are set aside is left out. When the others have gone on without it, it is
# behind them, whatever it says, and catches up.
forge m0 "$STATE1" B 1 "$STATE2" B 1
serves_without_m0
attach "${URLS[@]}"
for _ in $(seq 100); do
    [ "$(state)" != optimal ] || break
    sleep 0.1
done
expect optimal "$(state)" "state when the one that lied has caught up"
load verify 8MiB 1
stop engine

# A member that is a sector short is left out, too, and comes back when it has its size again.
stop m0
size=$(stat -c %s "$WORK/m0.img")
truncate -s $((size - 512)) "$WORK/m0.img"
target m0 $((size - 512))
attach --degraded "${URLS[@]}"
expect degraded "$(state)" "state without the one that is short"
grep -q "its capacity in bytes" "$WORK/engine.err" || fail "nobody says that a member is short"
load verify 8MiB 1
stop engine

target a
target b
"$NETRAID" create mirror --level 1 "${URI[a]}" "${URI[b]}" >/dev/null
attach "${URI[a]}" "${URI[b]}"
load write 8MiB 2
stop engine
forge a "$GENERATION" "<Q" "$huge"
refused "${URI[a]}.*${URI[b]}.*contradict" "$NETRAID" attach --nbd 127.0.0.1:0 "${URI[a]}" "${URI[b]}"
attach --force "${URI[b]}"
load verify 8MiB 2
stop engine

# Without a log: one member's written bits are ahead by more changes than there can have been.
for member in m0 m1 m2; do
    stop "$member"
    rm "$WORK/$member.img"
done
targets 3 64MiB
mapfile -t URLS < <(members 3)
"$NETRAID" create plain --level 5 --log off "${URLS[@]}" >/dev/null
attach "${URLS[@]}"
load write 8MiB 3
stop engine
stop m0
python3 - "$WORK/m0.img" <<'PYTHON'
import struct, sys
from checksum import crc32c

forged = 0
with open(sys.argv[1], "r+b") as disk:
    for place in range(64 << 10, 1 << 20, 4096):
        disk.seek(place)
        page = bytearray(disk.read(4096))
        if page[:8] != b"NRWRITN\n":
            continue
        page[40:48] = struct.pack("<Q", 1 << 60)
        page[12:16] = bytes(4)
        page[12:16] = struct.pack("<I", crc32c(struct.pack("<Q", place) + page))
        disk.seek(place)
        disk.write(page)
        forged += 1
assert forged > 0, "there are no written bits"
PYTHON
target m0
for seed in 3 4 5; do
    : >"$WORK/engine.err"
    attach --degraded "${URLS[@]}"
    expect degraded "$(state)" "state without the one that lies about what is written"
    [ "$seed" != 3 ] || grep -q "its written bits are far ahead" "$WORK/engine.err" || fail "nobody names who lies"
    load verify 8MiB "$seed"
    load write 8MiB $((seed + 1))
    load verify 8MiB $((seed + 1))
    stop engine
done
