# An array of two tgt LUNs and two of ours survives the loss of either kind.
. "$(dirname "$0")/lib.sh"
need jq tgtd tgtadm
[ "$(id -u)" = 0 ] || { say "needs root for tgtd"; exit 77; }

export TGT_IPC_SOCKET=$WORK/tgt.ipc
port=$((20000 + RANDOM % 10000))
tgtd -f --iscsi portal=127.0.0.1:$port >"$WORK/tgtd.err" 2>&1 &
PID[tgtd]=$!
for _ in $(seq 100); do tgtadm --op show --mode sys >/dev/null 2>&1 && break; sleep 0.1; done
for index in 1 2; do
    truncate -s 64M "$WORK/tgt$index.img"
    tgtadm --lld iscsi --op new --mode target --tid $index --targetname "iqn.2026-01.tgt:$index"
    tgtadm --lld iscsi --op new --mode logicalunit --tid $index --lun 1 --backing-store "$WORK/tgt$index.img"
    tgtadm --lld iscsi --op bind --mode target --tid $index --initiator-address ALL
done

targets 2
mapfile -t urls < <(members 2)
urls+=("iscsi://127.0.0.1:$port/iqn.2026-01.tgt:1/1" "iscsi://127.0.0.1:$port/iqn.2026-01.tgt:2/1")
"$NETRAID" create vol --level 5 "${urls[@]}"
attach "${urls[@]}"
load write 150MiB 1
load verify 150MiB 1
crash m0
load verify 150MiB 1
target fresh
"$NETRAID" replace "$CONTROL" 0 "${URI[fresh]}"
rebuilt
"$NETRAID" fail "$CONTROL" 2
load verify 150MiB 1
load write 150MiB 1 --rewritten 2
load verify 150MiB 1 --rewritten 2
stop engine
# tgtd without LUNs in use ends on request, not on a signal.
crash tgtd
