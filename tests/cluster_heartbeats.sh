# A client that is killed keeps nobody waiting for its plan's ten minutes: who wants what it had gets it within seconds. While it
# is there, a refusal says on which host it is, as which process, and what ends it.
. "$(dirname "$0")/cluster/lib.sh"

mediator
for i in 1 2 3; do agent "$i"; done
soon known 3
"$NETRAID" volume create /vm/disk -p --size 16MiB --level 5 --members 3 >/dev/null
attach() { launch engine "$NETRAID" volume attach --json /vm/disk --nbd "unix:$WORK/nbd.sock" --control "unix:$WORK/control.sock"; }
plans() { "$NETRAID" plan ls; }
is_heard() { plans | grep -q "process ${PID[engine]} on host"; }
host=$(cat /proc/sys/kernel/hostname)
attach
soon is_heard
plans | grep "/vm/disk" | grep -q "written by process ${PID[engine]} on host '\?$host'\?, heard of [0-9]" || fail "$(plans)"
plan=$("$NETRAID" plan ls --json | jq -r '.entries[0].plan')

# In use: who it is, and what ends it.
! "$NETRAID" rm /vm/disk 2>"$WORK/said" || fail "removed while it is in use"
grep -q "process ${PID[engine]} on host" "$WORK/said" || fail "$(cat "$WORK/said")"
grep -q "netraid plan end $plan" "$WORK/said" || fail "$(cat "$WORK/said")"
say "told: $(cat "$WORK/said")"
# A status names the path.
"$NETRAID" status "unix:$WORK/control.sock" | grep -q "/vm/disk" || fail "$("$NETRAID" status "unix:$WORK/control.sock")"

# It is killed: the next one gets the volume within seconds, without --take-over.
crash engine
began=$SECONDS
again() {
    rm -f "$WORK/nbd.sock" "$WORK/control.sock"
    timeout 60 "$NETRAID" volume heal /vm/disk >/dev/null 2>"$WORK/said"
}
soon again
say "after a client that was killed: $((SECONDS - began)) s"
[ $((SECONDS - began)) -le 20 ] || fail "it took $((SECONDS - began)) s"

# A plan that is ended lets nobody go on, and who had it hears of that within seconds.
attach
soon is_heard
plan=$(plans | cut -d' ' -f1)
engine=${PID[engine]}
"$NETRAID" plan end "$plan" >"$WORK/said"
grep -q "plan $plan has ended" "$WORK/said" || fail "$(cat "$WORK/said")"
[ -z "$(plans)" ] || fail "it is still there: $(plans)"
unset "PID[engine]"
await_end "$engine" 30 || fail "who was shut out goes on"
"$NETRAID" rm /vm/disk >/dev/null
soon agree
