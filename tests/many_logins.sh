# Ten thousand logins leave nothing behind in the target's memory.
. "$(dirname "$0")/lib.sh"
need jq python3

target m0 64MiB
# As 200 initiator ports in turn; each says where it is and goes.
come_and_go() {
    python3 - "${READY[m0]}" "$1" <<'PY'
import json, socket, sys

ready, count = json.loads(sys.argv[1]), int(sys.argv[2])
host, port = ready["addresses"][0].rsplit(":", 1)
text = f"InitiatorName=iqn.2026-01.test:many\0TargetName={ready['iqn']}\0".encode()
padded = text + bytes(-len(text) % 4)
for at in range(count):
    header = bytearray(48)
    header[0], header[1] = 0x43, 0x87
    header[5:8] = len(text).to_bytes(3, "big")
    header[8], header[13] = 0x80, at % 200
    with socket.create_connection((host, int(port))) as peer:
        peer.sendall(header + padded)
        answer = b""
        while len(answer) < 48:
            part = peer.recv(4096)
            assert part, f"login {at} was not answered"
            answer += part
        assert answer[0] == 0x23 and answer[36:38] == b"\0\0", f"login {at} was refused: {answer[36:38]}"
PY
}
resident() { awk '/^VmRSS:/ { print $2 }' "/proc/${PID[m0]}/status"; }

come_and_go 1000
before=$(resident)
come_and_go 9000
after=$(resident)
say "resident after 1,000 logins: $before KiB, after 10,000: $after KiB"
[ $((after - before)) -lt 1024 ] || fail "memory grows with logins"
stop m0
