# The buyer's test: a directory beside an array, reports and requirements, refusals, an interruption and what
# goes on from it, and arrays whose redundancy is off.
# Alone: what it finds, it finds in how long requests take.
. "$(dirname "$0")/lib.sh"
need jq

log=$WORK/log.jsonl
small=(--file-size 8MiB --net-file-size 4MiB --buffer 64KiB --random-seconds 0.3 --depths 1,8
    --stream-seconds 20)
evaluate() { "$NETRAID" evaluate --json --log "$log" "${small[@]}" --tape-rate 16MiB "$@"; }
# found FILE TARGET KIND: the state of a finding.
found() { jq -r ".targets[$2].findings[] | select(.kind == \"$3\") | .state" "$1"; }

mkdir "$WORK/dir"
echo mine >"$WORK/dir/mine"
array 5 3
say "all tests at a directory and at an array"
cat >"$WORK/met.toml" <<EOF
[[require]]
test = "host.1"
at_least = 0.001
[[require]]
test = "random.read"
depth = 8
at_least = 1.0
p99_us_at_most = 60000000
EOF
evaluate "$WORK/dir" "$NBD" --control "$NBD=$CONTROL" --destroy-data --tests all,degraded,rebuild \
    --fail-member 1 --requirements "$WORK/met.toml" --report "$WORK/report.html" --csv "$WORK/table.csv" \
    >"$WORK/both.json" 2>"$WORK/both.said"
grep -q 'this takes' "$WORK/both.said"
expect 24 "$(jq '.targets[1].results | length' "$WORK/both.json")" "tests"
expect '["trick.regions"]' "$(jq -c '[.targets[0].results[] | select(.outcome.state != "done") | .test
    | select(startswith("degraded") or startswith("rebuild") | not)]' "$WORK/both.json")" "what a directory does not have"
expect '[]' "$(jq -c '[.targets[1].results[] | select(.outcome.state != "done")]' "$WORK/both.json")" "what an array does not have"
expect true "$(jq '[.targets[].results[] | select(.outcome.state == "done") | .figure.value > 0] | all' "$WORK/both.json")" "figures"
expect true "$(jq '[.targets[].results[] | select(.test | test("^(host|net)")) | .limit.text != null] | all' "$WORK/both.json")" "limits"
expect true "$(jq '.complete and ([.requirements[].met] | all) and (.requirements | length) == 6' "$WORK/both.json")" "requirements"
expect true "$(jq '[.baselines[].mb_per_s > 0] | all' "$WORK/both.json")" "baselines"
for kind in wrong_bytes redundancy; do
    expect clear "$(found "$WORK/both.json" 1 $kind)" "$kind"
done
for kind in compression cache_only unstable_writes wrong_bytes; do
    for index in 0 1; do
        [ "$(found "$WORK/both.json" $index $kind)" != found ] || fail "$kind is found at target $index, where it is not: \
$(jq -c ".targets[$index].findings" "$WORK/both.json")"
    done
done
grep -q '</html>' "$WORK/report.html"
! grep -Eo '(src|href)="?http[^"]*' "$WORK/report.html" || fail "the page fetches something"
expect 'run,target,address,test,quantity,of,round,value,unit' "$(head -n 1 "$WORK/table.csv" | tr -d '\r')" "columns"
expect mine "$(ls -A "$WORK/dir")" "what is left in the directory"
expect optimal "$(state)" "the array after its member was failed"

say "a member away, and no redundancy"
"$NETRAID" fail "$CONTROL" 2 >/dev/null
evaluate "$NBD" --control "$CONTROL" --destroy-data --tests host.1 >"$WORK/degraded.json" 2>/dev/null
expect found "$(found "$WORK/degraded.json" 0 redundancy)" "an array without a member"
stop engine
for name in m0 m1 m2; do stop "$name"; done
URI=()
rm "$WORK"/m?.img
array 0 2
echo 'redundancy = true' >"$WORK/unmet.toml"
status=0
evaluate "$NBD" --control "$CONTROL" --destroy-data --tests host.1 --requirements "$WORK/unmet.toml" \
    >"$WORK/none.json" 2>"$WORK/none.said" || status=$?
expect 1 $status "status when a requirement is not met"
grep -q '1 of 1 are not met' "$WORK/none.said"
expect found "$(found "$WORK/none.json" 0 redundancy)" "level 0"
expect false "$(jq '.requirements[0].met' "$WORK/none.json")" "verdict"

say "a rate that is throttled"
launch throttled "$NETRAID" target --json --listen 127.0.0.1:0 --lun ram:64MiB --filter 0:rate=10MiB/s
# It says where a busy host keeps it from telling: then it is asked again. Where the pairs of bursts disagree already,
# nothing is asked of a throttle, and only flushes say that they could not tell.
for ((try = 0; try < 3; try++)); do
    evaluate "$(jq -r '.luns[0].uri' <<<"${READY[throttled]}")" --destroy-data \
        --tests host.2,trick.flush >"$WORK/throttled.json" 2>/dev/null
    throttled=$(found "$WORK/throttled.json" 0 throttled)
    unstable=$(found "$WORK/throttled.json" 0 unstable_writes)
    [ "${throttled:-$unstable}" = could_not_tell ] || break
done
expect 8388608 "$(jq '.targets[0].results[0].rounds[0].streams[0].bytes' "$WORK/throttled.json")" "bytes of a whole file"
[ "$throttled" = note ] || jq -c '.targets[0].findings[], .targets[0].results[].pairs' "$WORK/throttled.json" >&2
expect note "$throttled" "a throttle"
expect could_not_tell "$unstable" "flushes behind a throttle"
stop throttled

say "refusals"
refused 'destroy-data' "$NETRAID" evaluate "$NBD" --log "$log"
refused 'destroy-data' "$NETRAID" evaluate "$WORK/report.html" --log "$log"
refused 'label of a netraid member' "$NETRAID" evaluate "${URI[m0]}" --destroy-data --log "$log"
refused 'label of a netraid member' "$NETRAID" evaluate "$WORK/m0.img" --destroy-data --log "$log"
refused 'another device on the hosts' "$NETRAID" evaluate "$WORK/report.html" --destroy-data --client nowhere.invalid --log "$log"
mkfifo "$WORK/pipe"
refused 'neither a tape drive' "$NETRAID" evaluate "$WORK/dir" --tape "$WORK/pipe" --destroy-data --log "$log" "${small[@]}"
refused 'bytes free' "$NETRAID" evaluate "$WORK/dir" --file-size 512TiB --log "$log"
refused 'give a directory' "$NETRAID" evaluate "$WORK/nowhere" --log "$log"
refused 'no test' "$NETRAID" evaluate "$WORK/dir" --tests host.12 --log "$log" "${small[@]}"
refused 'has ended' "$NETRAID" evaluate --resume --log "$log"
head -c 8388608 /dev/zero | tr '\0' x >"$WORK/text"
refused 'compress' "$NETRAID" evaluate "$WORK/dir" --data "$WORK/text" --log "$log" "${small[@]}"
expect mine "$(ls -A "$WORK/dir")" "what is left after refusals"
expect true "$(evaluate "$WORK/dir" --dry-run --tests host.5 2>/dev/null | jq '.estimate_s > 0')" "a dry run"

say "an interruption, and on from there"
before=$(wc -l <"$log")
head -c 6291456 /dev/urandom >"$WORK/noise"
head -c 6291456 /dev/urandom >"$WORK/other"
(cd "$WORK" && exec "$NETRAID" evaluate --json --log "$log" "${small[@]}" "$WORK/dir" --tests host.1,host.2,host.5,net.3 \
    --data noise --tape-rate 1MiB) >"$WORK/cut.json" 2>"$WORK/cut.said" &
child=$!
for ((try = 0; ; try++)); do
    tail -n "+$((before + 1))" "$log" | grep -q '"test":"host.2"' && break
    [ $try -lt 1200 ] || { cat "$WORK/cut.said"; fail "it never came to host.2"; }
    sleep 0.05
done
kill -INT $child
status=0
wait $child || status=$?
expect 1 $status "status of an interrupted run"
grep -q 'evaluate --resume' "$WORK/cut.said"
expect mine "$(ls -A "$WORK/dir")" "what is left by an interrupted run"
refused 'not what the run began with' "$NETRAID" evaluate --resume --data "$WORK/other" --log "$log"
"$NETRAID" evaluate --resume --json --log "$log" >"$WORK/whole.json" 2>/dev/null
expect "$(realpath "$WORK")/noise" "$(realpath "$(jq -r .run.data.source "$WORK/whole.json")")" "where the data is from, by the log alone"
expect '["host.1","host.2","host.5","net.3"]' "$(jq -c '[.targets[0].results[].test]' "$WORK/whole.json")" "tests of both sittings"
expect '[true,1]' "$(jq -c '[.complete, .resumed]' "$WORK/whole.json")" "the run"
expect 1 "$(jq -c 'select(.event == "result" and .result.test == "host.1")' <(tail -n "+$((before + 1))" "$log") | wc -l)" \
    "host.1 ran once"
expect mine "$(ls -A "$WORK/dir")" "what is left at the end"
