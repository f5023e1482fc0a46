# quickstart --check goes through loss, replacement, rebuild and restart, and measures each step.
. "$(dirname "$0")/lib.sh"
need jq

size=1GiB
[ "$NIGHTLY" = 0 ] || size=8GiB
"$NETRAID" quickstart --check --json --size $size >"$WORK/report.json"
cat "$WORK/report.json"

jq -e '.ok' "$WORK/report.json" >/dev/null || fail "not ok"
expect optimal "$(jq -r '.array.state' "$WORK/report.json")" "state at the end"
expect 0 "$(jq '[.steps[] | select(.mb_per_s <= 0)] | length' "$WORK/report.json")" "idle steps"
bytes=$(jq .size_bytes "$WORK/report.json")
verifications=$(jq "[.steps[] | select(.verified_bytes == $bytes)] | length" "$WORK/report.json")
[ "$verifications" -ge 4 ] || fail "verified whole only $verifications times"
if [ "$NIGHTLY" = 0 ]; then
    jq -e '.seconds < 60' "$WORK/report.json" >/dev/null || fail "took a minute or more"
fi
