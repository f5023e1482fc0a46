# `--wait`: a command that began something stays until that has ended, shows how far it is, and says by its status how it
# ended. Who ends the waiting does not end the work.
. "$(dirname "$0")/lib.sh"
need jq

status() { "$NETRAID" status --json "$CONTROL" | jq -r "$1"; }
# ends STATUS PATTERN COMMAND...: it ends so, and the one line that says why has the pattern.
ends() {
    local wanted=$1 pattern=$2 status=0
    shift 2
    timeout 60 "$@" >"$WORK/said" 2>"$WORK/why" || status=$?
    cat "$WORK/said" "$WORK/why"
    expect "$wanted" $status "status of $*"
    [ "$wanted" = 0 ] && return
    expect 1 "$(grep -c '^netraid: ' "$WORK/why")" "lines that say why"
    grep -Eq -- "$pattern" "$WORK/why" || fail "does not say '$pattern': $*"
}
# later SECONDS COMMAND...: in the background.
later() { (sleep "$1"; shift; "$@") & }

targets 4 128MiB
target spare 128MiB --filter rate=3MiB/s --control "unix:$WORK/spare.sock"
mapfile -t URLS < <(members 4)
"$NETRAID" create vol --level 5 "${URLS[@]}" >/dev/null
attach "${URLS[@]}"
load write 180MiB 1

say "a replacement that is waited for, with a line each ten seconds"
ends 0 '' "$NETRAID" replace "$CONTROL" 1 "${URI[spare]}" --wait
expect in_sync "$(member_state 1)" "state when the command has ended"
grep -Eq '^copy of member 1: [0-9.]+% \(.*\), .*/s, .* left$' "$WORK/why" || fail "no line says how far it is"
rebuilt

say "a rebuild, and a scrub"
"$NETRAID" fail "$CONTROL" 1
load write 12MiB 2
ends 0 '' "$NETRAID" rebuild "$CONTROL" 1 --wait
expect in_sync "$(member_state 1)" "state when the command has ended"
document=$("$NETRAID" scrub --json "$CONTROL" --start --rate 200MiB --wait 2>/dev/null)
expect "complete 0" "$(jq -r '"\(.state) \(.wrong)"' <<<"$document")" "the scrub's document"

say "a signal ends the waiting, and not the work"
"$NETRAID" fail "$CONTROL" 1
load write 60MiB 3
"$NETRAID" rebuild "$CONTROL" 1 --wait >/dev/null 2>"$WORK/why" &
waiter=$!
sleep 2
kill -INT $waiter
ended=0
wait $waiter || ended=$?
cat "$WORK/why"
expect 3 $ended "status after a signal"
grep -q 'interrupted by a signal.*the work goes on' "$WORK/why" || fail "does not say that the work goes on"
expect catching_up "$(member_state 1)" "state after the waiting"

say "a member that is set aside while it is waited for"
later 1 "$NETRAID" fail "$CONTROL" 1 >/dev/null
"$NETRAID" scrub "$CONTROL" --start --rate 64KiB >/dev/null
until [ "$(member_state 1)" = faulty ]; do sleep 0.1; done
later 2 "$NETRAID" fail "$CONTROL" 1
ends 1 'member 1 was set aside' "$NETRAID" rebuild "$CONTROL" 1 --wait

say "a scrub that is stopped while it is waited for"
later 1 "$NETRAID" scrub "$CONTROL" --stop
ends 1 'was stopped before it was complete, at stripe [0-9]+' "$NETRAID" scrub "$CONTROL" --wait

say "an engine that goes away"
"$NETRAID" scrub "$CONTROL" --start --rate 64KiB >/dev/null
later 1 kill -KILL "${PID[engine]}"
ends 4 'went away' "$NETRAID" scrub "$CONTROL" --wait
