# The export on a Unix socket serves the same bytes as the one on TCP, and leaves no socket behind.
. "$(dirname "$0")/lib.sh"
need jq nbdcopy cmp

array 1 2
head -c 20000000 /dev/urandom >"$WORK/in"
truncate -s 20971520 "$WORK/in"
nbdcopy "$WORK/in" "$NBD"
stop engine
launch engine "$NETRAID" attach --json --nbd "unix:$WORK/nbd.sock" "${URLS[@]}"
NBD=$(jq -r '.exports[] | select(.kind == "nbd") | .uri' <<<"${READY[engine]}")
nbdcopy "$NBD" "$WORK/out"
cmp -n 20971520 "$WORK/in" "$WORK/out"
stop engine
[ ! -e "$WORK/nbd.sock" ] || fail "the socket was left behind"
