# A member that answers each request 1.5 s late keeps writers waiting for a second or two; then the array goes on without it, looks for
# it again after a while, and it catches up when it is as fast as the others again.
# Alone: it judges how long writes take.
. "$(dirname "$0")/lib.sh"
need jq fio

# writers SECONDS NAME: random writes for so long, verified.
writers() {
    fio --name=writers --ioengine=nbd --uri="$NBD" --rw=randwrite --bs=4k --size=24m --iodepth=8 --time_based \
        --runtime="$1" --verify=crc32c --verify_backlog=64 --write_iops_log="$WORK/$2" --log_avg_msec=1000 \
        --output-format=json --output="$WORK/$2.json"
}

last_error() { "$NETRAID" status --json "$CONTROL" | jq -r ".members[$1].last_error"; }

targets 4
target m4 64MiB --control "unix:$WORK/m4.sock"
mapfile -t URLS < <(members 5)
"$NETRAID" create vol --level 5 "${URLS[@]}" >/dev/null
attach "${URLS[@]}"
cd "$WORK"
load write 64MiB 3

writers 45 crawls &
users=$!
sleep 2
"$NETRAID" filter "unix:$WORK/m4.sock" 0 delay=1500ms >/dev/null
began=$SECONDS
stays_away() { is_in_state 4 faulty && case $(last_error 4) in *"it is looked for again in "*) ;; *) false ;; esac; }
await 38 stays_away
took=$((SECONDS - began))
say "the member stays away after $took s: $(last_error 4)"
wait $users || fail "writers saw an error"
# Operations a second, in the second before the member crawled, and some seconds after it was sent away.
before=$(awk -F, 'NR == 1 { print $2 }' "$WORK/crawls_iops.1.log")
after=$(awk -F, -v row=$((took + 6)) 'NR == row { print $2 }' "$WORK/crawls_iops.1.log")
say "writers did $before operations a second before, and $after without the member"
[ "$after" -gt $((before / 5)) ] || fail "writers still wait for the member"

"$NETRAID" filter "unix:$WORK/m4.sock" 0 none >/dev/null
await 60 is_in_state 4 in_sync
writers 3 again
expect "optimal" "$(state)" "the array, when the member is fast again"
expect 0 "$("$NETRAID" scrub --json "$CONTROL" --start --rate max --wait | jq '.wrong + .unrepaired')" "what is wrong"
stop engine
