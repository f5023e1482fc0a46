# Whoever only holds connections keeps nobody out: of a target and of NBD exports of processes that may have 64 descriptors, and
# of an agent's API. Requests without a token make an agent keep nothing of what they send.
. "$(dirname "$0")/lib.sh"
need jq python3

# Half-open logins from many addresses, more than there are descriptors; then a login that is meant.
launch disk bash -c 'ulimit -n 64; exec "$@"' - "$NETRAID" target --json --listen 127.0.0.1:0 --iqn iqn.2026-01.test:disk \
    --lun "file:$WORK/disk.img:64MiB"
URI[disk]=$(jq -r '.luns[0].uri' <<<"${READY[disk]}")
python3 - "$(jq -r '.addresses[0]' <<<"${READY[disk]}")" "$NETRAID" "${URI[disk]}" <<'PY' || fail "logins are kept out"
import socket, subprocess, sys, time

address, netraid, uri = sys.argv[1:]
host, port = address.rsplit(":", 1)
held = []
for at in range(150):
    peer = socket.socket()
    peer.bind((f"127.0.1.{1 + at % 50}", 0))
    peer.settimeout(10)
    peer.connect((host, int(port)))
    peer.sendall(b"\x43")
    held.append(peer)
for _ in range(5):
    begun = time.monotonic()
    subprocess.run([netraid, "bench", "member", uri, "--seconds", "0.1"], check=False, timeout=10, capture_output=True)
    asked = subprocess.run([netraid, "examine", uri], timeout=30, capture_output=True, text=True)
    assert "cannot" not in asked.stderr and "timed out" not in asked.stderr, asked.stderr
    assert time.monotonic() - begun < 8, "logins wait"
PY
stop disk

# NBD clients that say nothing, more than there are descriptors; then one that is meant, and the control socket.
targets 3
mapfile -t URLS < <(members 3)
"$NETRAID" create vol --level 5 "${URLS[@]}" >/dev/null
launch engine bash -c 'ulimit -n 64; exec "$@"' - "$NETRAID" attach --json --nbd 127.0.0.1:0 --nbd "unix:$WORK/nbd" \
    --control "unix:$WORK/control" "${URLS[@]}"
python3 - "$(jq -r '.exports[0].uri' <<<"${READY[engine]}")" "$NETRAID" "$WORK" "${PID[engine]}" <<'PY' || fail "NBD clients are kept out"
import os, socket, struct, subprocess, sys, time, urllib.parse

uri, netraid, work, pid = sys.argv[1:]
url = urllib.parse.urlparse(uri)


def connect():
    return socket.create_connection((url.hostname, url.port), timeout=60)


def take(peer, length):
    data = b""
    while len(data) < length:
        part = peer.recv(length - len(data))
        assert part, "closed"
        data += part
    return data


held = [connect() for _ in range(150)]
begun = time.monotonic()
asked = subprocess.run([netraid, "status", f"unix:{work}/control"], timeout=30, capture_output=True, text=True)
assert asked.returncode == 0, asked.stderr
print(len(os.listdir(f"/proc/{pid}/fd")), "descriptors")
with connect() as peer:
    take(peer, 18)
    # The default export; then a read of its first 512 bytes.
    peer.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, 0))
    take(peer, 10)
    peer.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, 1, 0, 512))
    take(peer, 16 + 512)
print(f"served after {time.monotonic() - begun:.1f} s")
PY
lines=$(grep -c "cannot accept" "$WORK/engine.err" || true)
[ "$lines" -le 4 ] || fail "$lines lines about clients that cannot be accepted"
stop engine

mkdir "$WORK/m" "$WORK/a"
bash -c 'ulimit -Sn 64; exec "$@"' - true
launch mediator bash -c 'ulimit -Sn 64; exec "$@"' - "$NETRAID" mediator run --json --dir "$WORK/m" --listen 127.0.0.1:0
launch agent bash -c 'ulimit -n 1024; exec "$@"' - "$NETRAID" agent run --json --dir "$WORK/a" --space 1GiB --rate 100MiB \
    --listen 127.0.0.1:0 --portal 127.0.0.1:0 --mediator "$WORK/m/agent.access"
limits() { awk '/^Max open files/ { print $4, $5 }' "/proc/${PID[$1]}/limits"; }
read -r soft hard <<<"$(limits mediator)"
expect "$hard" "$soft" "descriptors of a mediator that was started with few"

export NETRAID_ACCESS=$WORK/m/admin.access
"$NETRAID" volume create /v --size 64MiB --survives 0 --level 0 --members 1 >/dev/null
python3 - "$(jq -r .api <<<"${READY[agent]}")" "${PID[agent]}" "$NETRAID" "$WORK" <<'PY' || fail "the API of the agent"
import socket, ssl, subprocess, sys, urllib.parse

api, pid, netraid, work = sys.argv[1:]
url = urllib.parse.urlparse(api)
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE


def connect():
    return context.wrap_socket(socket.create_connection((url.hostname, url.port), timeout=10))


def resident():
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


# What strangers send is not kept.
before, held = resident(), []
head = b"POST /v1/operations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 8388608\r\n\r\n["
for _ in range(150):
    peer = connect()
    try:
        peer.sendall(head + b" " * (1 << 20))
    except OSError:
        pass  # It was answered already.
    held.append(peer)
added = resident() - before
print(f"150 requests without a token add {added:.1f} MiB")
assert added < 32, added

# Idle connections are few, and clients are served beside them.
for _ in range(300):
    held.append(connect())
import os
print(len(os.listdir(f"/proc/{pid}/fd")), "descriptors")
assert len(os.listdir(f"/proc/{pid}/fd")) < 150
data = f"{work}/data"
with open(data, "wb") as file:
    file.write(b"x" * 100_000)
for at in range(3):
    subprocess.run([netraid, "put", data, f"/put{at}", "--survives", "0"], check=True, timeout=20, capture_output=True)
PY
stop agent
stop mediator
