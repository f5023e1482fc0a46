# Wrong addresses, closed and silent ports, absent targets and LUNs: each its own clear error, soon.
. "$(dirname "$0")/lib.sh"
need jq python3

target m0
good=${URI[m0]}
create() { refused "$1" "$NETRAID" create vol --level 1 "$good" "$2"; }
create "does not begin with iscsi://" "http://127.0.0.1/x/0"
create "LUN that is not a number" "iscsi://127.0.0.1/iqn.x/first"
create "valid host and port" "iscsi://127.0.0.1:99999/iqn.x/0"
create "no such lun" "${good/%\/0/\/7}"
create "not found|no such target" "${good/:m0\//:m9\/}"
create "resol|lookup|address" "iscsi://no-such-host.invalid/iqn.x/0"

# A port that was just free: nobody listens there.
closed=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
create "refused" "iscsi://127.0.0.1:$closed/iqn.x/0"

# A port that accepts and says nothing.
python3 -c '
import socket, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(8)
print("{\"event\":\"ready\",\"port\":%d}" % s.getsockname()[1], flush=True)
held = []
while True: held.append(s.accept())
' >"$WORK/silent" &
PID[silent]=$!
until [ -s "$WORK/silent" ]; do sleep 0.05; done
create "accepts connections but did not finish" "iscsi://127.0.0.1:$(jq .port "$WORK/silent")/iqn.x/0"
crash silent
stop m0
