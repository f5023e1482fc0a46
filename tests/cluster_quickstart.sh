# quickstart --cluster --check: a volume and a file through the loss of an agent, its rebuild on another,
# and the loss of the mediator; what agents have booked is what the mediator knows at the end.
. "$(dirname "$0")/lib.sh"
need jq

size=256MiB
[ "$NIGHTLY" = 0 ] || size=4GiB
"$NETRAID" quickstart --cluster --check --json --size $size >"$WORK/report.json" 2>"$WORK/quickstart.err"
cat "$WORK/report.json"
jq -e '.ok' "$WORK/report.json" >/dev/null || fail "not ok"
expect 9 "$(jq '.steps | length' "$WORK/report.json")" "steps"
expect 0 "$(jq '[.steps[] | select(.mb_per_s <= 0)] | length' "$WORK/report.json")" "idle steps"
expect 0 "$(jq '.check.differences | length' "$WORK/report.json")" "differences between agents and mediator"
expect 4 "$(jq .check.agents "$WORK/report.json")" "agents that answered"
