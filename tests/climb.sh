# Climbing part by part: all rungs are there; members whose rate is known are on the line and limit; given
# members are refused while they are in use, and left empty.
# Alone: it measures what each part can do, and which is slowest.
. "$(dirname "$0")/lib.sh"
need jq

climb() {
    "$NETRAID" bench climb --json --rounds 1 --span 8MiB --large 64KiB --requests 4KiB,64KiB --depths 1,4 \
        --depth 16 "$@"
}

climb --members 3 --filter rate=20MiB/s --seconds 0.3 --report "$WORK/climb.html" >"$WORK/climb.json"
here() { jq -r "$1" "$WORK/climb.json"; }
expect '[1,2]' "$(here '[.parity.series[].processors] | unique | map(if . > 1 then 2 else . end) | unique | tojson')" \
    "processors of parity"
expect 11 "$(here '[.parity.series[].points[].buffer_bytes] | unique | length')" "buffers from 1 KiB to 1 MiB"
expect '[1,2,4,8,16]' "$(here '[.parity.series[] | select(.work == "p_and_q").sources] | unique | tojson')" "sources"
expect 4 "$(here '.transport.fits | length')" "fits of the transport"
expect 8 "$(here '.member | length')" "one member: two sizes, two ways, two depths"
expect '[{"level":0},{"level":5},"together","transport"]' \
    "$(here '[.steps[].what] | unique | sort_by(tojson) | sort_by(type == "string") | tojson')" "what is climbed"
expect '[[1,2,3],[3]]' "$(here '[[0, 5][] as $level
    | [.steps[] | select(.what == {level: $level} and .write).members]] | tojson')" "members of volumes"
expect 4 "$(here '.end_to_end | length')" "end to end: two sizes, two ways"
expect true "$(here '[.steps[] | select(.what == {level: 0}).of_line > 0.9] | all')" "level 0 is on the line"
expect 'null' "$(here '[.bends[].members] | unique[0]')" "no volume bends"
expect '["members"]' "$(here '[.verdicts[] | select(.subject | test("level . on 3 members$")).limit] | unique | tojson')" \
    "what limits"
here '.verdicts[].sentence'
[ "$(grep -c '<svg' "$WORK/climb.html")" -ge 16 ] || fail "figures: $(grep -c '<svg' "$WORK/climb.html")"

# Given members.
targets 2 128MiB
refused 'overwrite' "$NETRAID" bench climb "${URI[m0]}" "${URI[m1]}"
"$NETRAID" create vol --level 1 "${URI[m0]}" "${URI[m1]}" >/dev/null
refused "array 'vol'" "$NETRAID" bench climb --overwrite --report "$WORK/climb.html" "${URI[m0]}" "${URI[m1]}"
[ "$(grep -c '<svg' "$WORK/climb.html")" -ge 16 ] || fail "the earlier report is gone"
refused 'it is no file' "$NETRAID" bench climb --report /dev/null --members 3
expect 2 "$("$NETRAID" examine --json "${URI[m0]}" "${URI[m1]}" | jq '[.[].label.name | select(. == "vol")] | length')" \
    "labels of the array that was refused"
target fresh0 128MiB
target fresh1 128MiB
climb --seconds 0.02 --overwrite --level 1 "${URI[fresh0]}" "${URI[fresh1]}" >"$WORK/given.json"
expect '["iscsi://","iscsi://"]' "$(jq -c '[.members[][:8]]' "$WORK/given.json")" "members"
expect 0 "$(jq '[.steps[] | select(.what == "transport")] | length' "$WORK/given.json")" "bare TCP to members elsewhere"
expect 1 "$(jq '[.steps[] | select(.what == {level: 1} and .write)] | length' "$WORK/given.json")" "mirrors"
# They are empty: an array is made of them without --force.
"$NETRAID" create other --level 1 "${URI[fresh0]}" "${URI[fresh1]}" >/dev/null

# So do members of a climb that was interrupted while a volume was on them.
target fresh2 128MiB
"$NETRAID" bench climb --rounds 1 --span 8MiB --large 64KiB --requests 64KiB --depths 1 --seconds 0.5 --overwrite \
    --level 0 "${URI[fresh2]}" 2>"$WORK/interrupted.err" >/dev/null &
PID[climb]=$!
until [ "$("$NETRAID" examine --json "${URI[fresh2]}" 2>/dev/null | jq -r '.[0].label.name')" = bench ]; do
    kill -0 "${PID[climb]}" || fail "the climb ended before there was a volume"
done
kill -TERM "${PID[climb]}"
status=0
wait "${PID[climb]}" || status=$?
unset "PID[climb]"
expect 1 "$status" "status of an interrupted climb"
grep -q 'interrupted by a signal' "$WORK/interrupted.err"
"$NETRAID" create third --level 0 "${URI[fresh2]}" >/dev/null

refused 'give 0.01' "$NETRAID" bench climb --seconds 0
refused 'give two of the largest' "$NETRAID" bench climb --span 4MiB
