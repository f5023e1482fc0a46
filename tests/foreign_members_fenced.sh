# Members on tgt are fenced, however often an engine is killed or taken over from, and given back at
# the end: tgt keeps the registrations of sessions that are gone, and forgets whose a reservation was.
. "$(dirname "$0")/lib.sh"
need jq tgtd tgtadm unshare
[ "$(id -u)" = 0 ] || { say "needs root for tgtd"; exit 77; }

export TGT_IPC_SOCKET=$WORK/tgt.ipc
port=$((20000 + RANDOM % 10000))
tgtd -f --iscsi portal=127.0.0.1:$port >"$WORK/tgtd.err" 2>&1 &
PID[tgtd]=$!
for _ in $(seq 100); do tgtadm --op show --mode sys >/dev/null 2>&1 && break; sleep 0.1; done
for index in 1 2 3; do
    truncate -s 64M "$WORK/tgt$index.img"
    tgtadm --lld iscsi --op new --mode target --tid $index --targetname "iqn.2026-01.tgt:$index"
    tgtadm --lld iscsi --op new --mode logicalunit --tid $index --lun 1 --backing-store "$WORK/tgt$index.img"
    tgtadm --lld iscsi --op bind --mode target --tid $index --initiator-address ALL
    urls+=("iscsi://127.0.0.1:$port/iqn.2026-01.tgt:$index/1")
done

# Another machine: its own locks, and its own identity.
mkdir -p /run/netraid
tr -d - </proc/sys/kernel/random/uuid >"$WORK/machine-id"
cat >"$WORK/elsewhere" <<'SH'
mount -t tmpfs none /run/netraid
[ ! -e /etc/machine-id ] || mount --bind "$1/machine-id" /etc/machine-id
shift
exec "$@"
SH
elsewhere() {
    launch elsewhere unshare -m sh "$WORK/elsewhere" "$WORK" "$NETRAID" attach --json --nbd 127.0.0.1:0 "$@"
    NBD=$(jq -r '.exports[] | select(.kind == "nbd") | .uri' <<<"${READY[elsewhere]}")
}
fenced() { expect "$1" "$("$NETRAID" status --json "$CONTROL" | jq '[.members[] | select(.exclusive)] | length')" "fenced members"; }

"$NETRAID" create vol --level 5 "${urls[@]}" >/dev/null
attach --sessions 2 "${urls[@]}"
load write 10MiB 1

# What a killed engine leaves is cleared away by its successor, each time.
for sessions in 1 2 2 1; do
    crash engine
    attach --sessions $sessions "${urls[@]}"
    fenced 3
    load verify 10MiB 1
done

# A connection breaks: its registration stays at tgt, and is given back all the same.
mapfile -t at < <(tgtadm --lld iscsi --op show --mode conn --tid 2 | awk '/Session:|Connection:/ { print $2 }')
tgtadm --lld iscsi --op delete --mode conn --tid 2 --sid "${at[0]}" --cid "${at[1]}"
load write 10MiB 1 --rewritten 2 >/dev/null
expect faulty "$(member_state 1)" "a member whose connection broke"
"$NETRAID" rebuild "$CONTROL" 1
rebuilt
fenced 3
stop engine
elsewhere "${urls[@]}"
load verify 10MiB 1 --rewritten 2
crash elsewhere

# Another host's engine is removed by a word, and the host finds what it left.
attach --take-over "${urls[@]}"
load verify 10MiB 1 --rewritten 2
stop engine
elsewhere "${urls[@]}"
load verify 10MiB 1 --rewritten 2
stop elsewhere
# tgtd without LUNs in use ends on request, not on a signal.
crash tgtd
