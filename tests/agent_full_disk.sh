# The disk under an agent's store and audit log is full: what is asked for then is refused and not promised,
# data that is there is served, the agent goes on, and when there is space again so does all else. The agent
# ends with a full disk, and starts on one. Who is refused is told which agent's disk is full, and where other
# agents are enough nobody is refused.
. "$(dirname "$0")/cluster/lib.sh"
small_disk

mediator
# The store and the audit log of the first are on the small disk: its segments too, which are in its directory.
agent 1 "$WORK/state/agent"
agent 2
agent 3
soon known 3
put() { timeout 60 "$NETRAID" put --level 5 --members 3 "$@" >"$WORK/said" 2>&1; }
booked() { "$NETRAID" agent status --json --dir "$WORK/state/agent" | jq -c '[.status.left.space_bytes, .status.segments]'; }

head -c 300000 /dev/urandom >"$WORK/in"
put "$WORK/in" /one || fail "put: $(cat "$WORK/said")"
"$NETRAID" cat /one | cmp - "$WORK/in"
before=$(booked)

full
put "$WORK/in" /two && fail "put on a full disk"
grep -q 'on host1: its disk is full.*free space on that disk, or drain' "$WORK/said" ||
    fail "does not say whose disk is full: $(cat "$WORK/said")"
# Reads need nothing of it: who opens is let in, and books no rate.
"$NETRAID" cat /one | cmp - "$WORK/in"
kill -0 "${PID[agent1]}" || fail "the agent ended"
# Refusals are to be told, and cannot be: that harms nobody.
for _ in 1 2 3; do
    curl --silent --insecure "$(jq -r .api <<<"${READY[agent1]}")/v1/status" >/dev/null || true
done

# It starts on a full disk, or says why it does not.
crash agent1
if timeout 20 "$NETRAID" agent run --json --dir "$WORK/state/agent" --listen "${API[1]}" --portal "${PORTAL[1]}" \
    --space 4GiB --rate 512MiB --host host1 >"$WORK/started" 2>"$WORK/start.err"; then
    fail "ended well by itself"
fi
if [ ! -s "$WORK/started" ]; then
    say "on a full disk: $(tail -n 1 "$WORK/start.err")"
    grep -q '^netraid: ' "$WORK/start.err" || fail "no reason: $(cat "$WORK/start.err")"
fi

space
agent 1 "$WORK/state/agent"
soon known 3
"$NETRAID" cat /one | cmp - "$WORK/in"
two() { put --force "$WORK/in" /two; }
soon two
"$NETRAID" cat /two | cmp - "$WORK/in"
"$NETRAID" rm /two >/dev/null
soon agree
expect 0 "$(jq '.differences | length' "$WORK/check.json")" "differences"
expect "$before" "$(booked)" "what is booked"
jq -e . "$WORK/state/agent/audit.jsonl" >/dev/null || fail "a spoiled line in the audit log"

# Full while it runs and empty again: it goes on without a restart.
full
put "$WORK/in" /three && fail "put on a full disk"
space
three() { put --force "$WORK/in" /three; }
soon three
"$NETRAID" cat /three | cmp - "$WORK/in"

# Other agents take what the full one refuses. The one with the most space left is asked first: of two volumes
# at least one was to be on the full agent.
agent 4
soon known 4
full
for path in /four /five; do put "$WORK/in" $path || fail "put beside a full disk: $(cat "$WORK/said")"; done
"$NETRAID" volume create /six --size 1MiB --level 5 --members 3 >"$WORK/said" 2>&1 ||
    fail "volume create beside a full disk: $(cat "$WORK/said")"
"$NETRAID" cat /five | cmp - "$WORK/in"
space
for path in /one /three /four /five /six; do "$NETRAID" rm $path >/dev/null; done
soon agree
expect 0 "$(jq .segments "$WORK/check.json")" "segments that are left"
