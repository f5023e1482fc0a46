# The agents of a volume that nobody uses at the moment are killed and started again, one after the other: each
# is taken back before the next one goes, and what was written is there.
. "$(dirname "$0")/lib.sh"
need jq

launch mediator "$NETRAID" mediator run --json --dir "$WORK/mediator" --listen 127.0.0.1:0
export NETRAID_ACCESS=$WORK/mediator/client.access
ADMIN=$WORK/mediator/admin.access
declare -A API=() PORTAL=()
start_agent() {
    launch "agent$1" "$NETRAID" agent run --json --dir "$WORK/agent$1" --space 2GiB --rate 256MiB \
        --listen "${API[$1]:-127.0.0.1:0}" --portal "${PORTAL[$1]:-127.0.0.1:0}" --host "host$1" \
        --mediator "$WORK/mediator/agent.access"
    API[$1]=$(jq -r .api <<<"${READY[agent$1]}")
    API[$1]=${API[$1]#*://}
    PORTAL[$1]=$(jq -r .portal <<<"${READY[agent$1]}")
}
all_known() {
    [ "$("$NETRAID" mediator status --json --access "$ADMIN" | jq .reachable)" = 3 ]
}
for i in 1 2 3; do start_agent $i; done
CONTROL=unix:$WORK/control.sock
for _ in $(seq 200); do all_known && break || sleep 0.1; done
"$NETRAID" volume create /idle --size 64MiB --level 5 --members 3 >/dev/null
launch engine "$NETRAID" volume attach --json /idle --nbd "unix:$WORK/nbd.sock" --control "$CONTROL" --replace-after never
NBD=$(jq -r '.exports[0].uri' <<<"${READY[engine]}")
load write 32MiB 1 >/dev/null

for i in 1 2 3; do
    crash "agent$i"
    start_agent $i
    rebuilt
done
load verify 32MiB 1 >/dev/null
expect optimal "$(state)" "state"
stop engine
