# The disk under a mediator's store is full: what is asked for then is refused and not promised, what is open
# goes on, and when there is space again so does all else, without a restart. It is killed on a full disk, and
# starts on one or says why it does not. Nothing is leaked.
. "$(dirname "$0")/cluster/lib.sh"
small_disk

MEDIATOR_DIR=$WORK/state/mediator
mediator
for i in 1 2 3; do agent $i; done
soon known 3
booked() {
    local i
    for i in 1 2 3; do
        "$NETRAID" agent status --json --dir "$WORK/agent$i" | jq -c '[.status.left, .status.segments]'
    done
}
before=$(booked)
put() { timeout 60 "$NETRAID" put --level 5 --members 3 "$@" >"$WORK/said" 2>&1; }
head -c 300000 /dev/urandom >"$WORK/in"
put "$WORK/in" /one || fail "put: $(cat "$WORK/said")"
"$NETRAID" volume create /volume --size 64MiB --level 5 --members 3 >/dev/null
CONTROL=unix:$WORK/control.sock
launch engine "$NETRAID" volume attach --json /volume --nbd "unix:$WORK/nbd.sock" --control "$CONTROL"
NBD=$(jq -r '.exports[0].uri' <<<"${READY[engine]}")
load write 16MiB 1 >/dev/null

# What was asked for while nothing could be stored is not there later, in part or whole.
names=0
: >"$WORK/empty"
refuse() {
    local end=0
    timeout 60 "$NETRAID" "$@" >"$WORK/said" 2>&1 || end=$?
    [ $end != 0 ] || return 1
    grep -q '^netraid: ' "$WORK/said" || fail "no error: $(cat "$WORK/said")"
}
full
until refuse put -p "$WORK/empty" "/new/$names"; do
    # The log of the store had room left.
    names=$((names + 1))
    [ $names -lt 2000 ] || fail "the disk is never full"
done
say "refused after $names names more: $(tail -n 1 "$WORK/said")"
grep -q "mediator's store has no space left on its disk" "$WORK/said" || fail "does not say why: $(cat "$WORK/said")"
refuse put "$WORK/in" /two || fail "put on a full disk"
grep -q "mediator's store has no space left on its disk" "$WORK/said" || fail "does not say why: $(cat "$WORK/said")"
refuse volume create /full --size 64MiB --level 5 --members 3 || fail "a volume on a full disk"
grep -q "mediator's store has no space left on its disk" "$WORK/said" || fail "does not say why: $(cat "$WORK/said")"
# What is open needs nothing of it.
load verify 16MiB 1 >/dev/null
load write 16MiB 2 >/dev/null
kill -0 "${PID[mediator]}" || fail "the mediator ended"

space
two() { put --force "$WORK/in" /two; }
soon two
"$NETRAID" cat /two | cmp - "$WORK/in"
load verify 16MiB 2 >/dev/null

full
crash mediator
if timeout 20 "$NETRAID" mediator run --json --dir "$MEDIATOR_DIR" --listen "$MEDIATOR_AT" \
    >"$WORK/started" 2>"$WORK/start.err"; then
    fail "ended well by itself"
fi
if [ ! -s "$WORK/started" ]; then
    say "on a full disk: $(tail -n 1 "$WORK/start.err")"
    grep -q '^netraid: ' "$WORK/start.err" || fail "no reason: $(cat "$WORK/start.err")"
fi
space
mediator
soon known 3
load verify 16MiB 2 >/dev/null
stop engine
for path in /one /two; do "$NETRAID" cat $path | cmp - "$WORK/in"; done
for path in /one /two /volume; do "$NETRAID" rm $path >/dev/null; done
while [ $names -gt 0 ]; do
    names=$((names - 1))
    "$NETRAID" rm "/new/$names" >/dev/null
done
soon agree
expect 0 "$(jq '.differences | length' "$WORK/check.json")" "differences"
expect 0 "$(jq .segments "$WORK/check.json")" "segments that are left"
expect "$before" "$(booked)" "what is booked"
