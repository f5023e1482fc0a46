# A persistent reservation with APTPL keeps others out after the target was killed right behind
# GOOD, and a damaged file of it keeps the target from starting.
. "$(dirname "$0")/lib.sh"
need jq python3

cat >"$WORK/reserve.py" <<'PYTHON'
"""ask.py URI ISID-BYTE COMMAND...: what an initiator port gets for each command, one a line."""
import socket, struct, sys

uri, isid, commands = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
address, target, _ = uri.removeprefix("iscsi://").split("/")
host, port = address.rsplit(":", 1)
link = socket.create_connection((host, int(port)), timeout=10)
sn = 1

def take(count):
    out = b""
    while len(out) < count:
        part = link.recv(count - len(out))
        assert part, "the target closed the connection"
        out += part
    return out

def exchange(head, data):
    link.sendall(head[:4] + struct.pack(">I", len(data)) + head[8:] + data + b"\0" * (-len(data) % 4))
    while True:
        head = take(48)
        body = take((struct.unpack(">I", head[4:8])[0] & 0xFFFFFF) + 3 & ~3)
        if head[0] & 0x3F != 0x20:
            return head, body

def run(cdb, data=b"", expect=0):
    global sn
    flags = 0x81 | (0x20 if data else 0x40 if expect else 0)
    head = struct.pack(">BBHIQIIII", 1, flags, 0, 0, 0, sn, len(data) or expect, sn, 0)
    sn += 1
    head, body = exchange(head + bytes(cdb).ljust(16, b"\0"), data)
    if head[0] == 0x25 and not head[1] & 1:
        return take(48)[3], body
    return head[3], body

def out(action, kind, key, other, aptpl=1):
    data = struct.pack(">QQIBBH", key, other, 0, aptpl, 0, 0)
    return run([0x5F, action, kind, 0, 0, 0, 0, 0, 24], data)[0]

text = f"InitiatorName=iqn.2026-01.test:i\0TargetName={target}\0SessionType=Normal\0".encode()
head = struct.pack(">BBHI", 0x43, 0x87, 0, 0) + bytes([0x80, 0, 0, 0, 0, isid, 0, 0])
head, _ = exchange(head + struct.pack(">IIIIQQ", 0, 0, 1, 0, 0, 0), text)
assert head[36] == 0, f"login status {head[36:38].hex()}"
while run([0])[0] == 2:
    pass
for command in commands:
    if command == "read":
        print("%02x" % run([0x28, 0, 0, 0, 0, 0, 0, 0, 1], expect=512)[0])
    elif command == "keys":
        print(run([0x5E, 0, 0, 0, 0, 0, 0, 1, 0], expect=256)[1][8:].hex())
    else:
        print("%02x" % out(*[int(field) for field in command.split(",")]))
PYTHON
ask() { python3 "$WORK/reserve.py" "${URI[m0]}" "$@" | paste -sd' '; }

control=unix:$WORK/m0.sock
target m0 64MiB --control "$control"
# Register, and reserve with exclusive access; the other port is kept out.
expect "00 00 00" "$(ask 1 0,0,0,7 1,3,7,0 read)" "status of the holder"
expect 'Exclusive Access iqn.2026-01.test:i 800000000001 0x7 true' \
    "$("$NETRAID" status --json "$control" |
        jq -r '.luns[0] | "\(.reservation) \(.registrants[] | "\(.initiator) \(.isid) \(.key) \(.holds)")"')" \
    "what the status shows of it"
"$NETRAID" status "$control" | grep -q 'iqn.2026-01.test:i .*holds the reservation' || fail "not shown to people"
crash m0
[ -s "$WORK/m0.img.reservations" ] || fail "nothing was stored"
target m0
expect "18" "$(ask 2 read)" "status of another port"
expect "00 0000000000000007" "$(ask 1 read keys)" "what the holder finds"

# CLEAR leaves nothing behind.
expect "00" "$(ask 1 3,0,7,0)" "status of CLEAR"
[ ! -e "$WORK/m0.img.reservations" ] || fail "the file is still there"
crash m0
target m0
expect "00 " "$(ask 2 read keys)" "what another port finds"

# A damaged file is never taken for no reservation.
expect "00 00" "$(ask 1 0,0,0,7 1,3,7,0)" "status of the holder"
stop m0
printf '\377' | dd of="$WORK/m0.img.reservations" bs=1 seek=40 conv=notrunc status=none
refused 'm0.img.reservations.*damaged.*restore it' "$NETRAID" target --listen 127.0.0.1:0 \
    --lun "file:$WORK/m0.img"

# Where state cannot be kept APTPL is refused; with --state it is kept.
launch m0 "$NETRAID" target --json --listen 127.0.0.1:0 --iqn iqn.2026-01.test:r --lun ram:1MiB
URI[m0]=$(jq -r '.luns[0].uri' <<<"${READY[m0]}")
expect "02" "$(ask 1 0,0,0,7)" "status without a place"
stop m0
launch m0 "$NETRAID" target --json --listen 127.0.0.1:0 --iqn iqn.2026-01.test:r --lun ram:1MiB \
    --state "$WORK"
URI[m0]=$(jq -r '.luns[0].uri' <<<"${READY[m0]}")
expect "00" "$(ask 1 0,0,0,7)" "status with a place"
[ -s "$WORK/iqn.2026-01.test:r.lun-0.reservations" ] || fail "nothing was stored"
stop m0

# A disk's reservations follow it to another LUN, and do not stay behind for the next disk there.
[ "$(id -u)" = 0 ] && command -v losetup >/dev/null || exit 0
DISKS=()
detach_all() { for disk in "${DISKS[@]}"; do losetup --detach "$disk" 2>/dev/null || true; done; }
at_end detach_all
for name in one two; do
    truncate -s 8M "$WORK/$name"
    DISKS+=("$(losetup --find --show "$WORK/$name")")
done
# disks DISK...: serves these.
disks() {
    local luns=()
    for disk in "$@"; do luns+=(--lun "block:$disk"); done
    launch m0 "$NETRAID" target --json --listen 127.0.0.1:0 --iqn iqn.2026-01.test:r "${luns[@]}" \
        --state "$WORK"
    URI[m0]=$(jq -r '.luns[0].uri' <<<"${READY[m0]}")
}
disks "${DISKS[0]}" "${DISKS[1]}"
expect "00 00" "$(ask 1 0,0,0,7 1,3,7,0)" "status of the holder"
stop m0
disks "${DISKS[1]}" "${DISKS[0]}"
expect "00 " "$(ask 2 read keys)" "what another port finds at the disk that is LUN 0 now"
stop m0
disks "${DISKS[0]}"
expect "18" "$(ask 2 read)" "status of another port at the disk that was reserved"
stop m0
