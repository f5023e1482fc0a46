# Header and data digests, asked for by our initiator, are agreed and carry an array.
. "$(dirname "$0")/lib.sh"
need jq

for index in 0 1 2; do target m$index 64MiB --digests required; done
mapfile -t urls < <(members 3)
"$NETRAID" create vol --level 5 --digests "${urls[@]}" >/dev/null
attach --digests "${urls[@]}"
load write 100MiB 1
load verify 100MiB 1
stop engine

# Who must have digests lets nobody in without; who must not, nobody with them.
refused 'login failed.*digest' "$NETRAID" examine "${urls[0]}"
for index in 0 1 2; do
    stop m$index
    target m$index 64MiB --digests never
done
refused 'login failed.*digest' "$NETRAID" attach --nbd 127.0.0.1:0 --digests "${urls[@]}"
attach "${urls[@]}"
load verify 100MiB 1
stop engine
