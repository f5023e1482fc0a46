# The agents of a volume that nobody uses at the moment are killed and started again, one after the other: each
# is taken back before the next one goes, and what was written is there.
. "$(dirname "$0")/cluster/lib.sh"

mediator
for i in 1 2 3; do agent $i; done
CONTROL=unix:$WORK/control.sock
soon known 3
"$NETRAID" volume create /idle --size 64MiB --level 5 --members 3 >/dev/null
launch engine "$NETRAID" volume attach --json /idle --nbd "unix:$WORK/nbd.sock" --control "$CONTROL" --replace-after never
NBD=$(jq -r '.exports[0].uri' <<<"${READY[engine]}")
load write 32MiB 1 >/dev/null

for i in 1 2 3; do
    crash "agent$i"
    agent $i
    rebuilt
done
load verify 32MiB 1 >/dev/null
expect optimal "$(state)" "state"

# Two signals at once are one word, as `timeout` says it: the volume is closed, and opens again at once.
child=${PID[engine]} status=0
unset "PID[engine]"
kill -TERM "$child"
kill -INT "$child"
await_end "$child" 30 || fail "the engine does not end"
wait "$child" || status=$?
expect 0 "$status" "status after two signals"
launch engine "$NETRAID" volume attach --json /idle --nbd "unix:$WORK/nbd.sock" --control "$CONTROL"
load verify 32MiB 1 >/dev/null
stop engine
