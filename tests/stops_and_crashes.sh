# SIGTERM and SIGKILL of the engine and of every target: what was acknowledged is read again;
# without a log (crashes.sh is about arrays with one).
. "$(dirname "$0")/lib.sh"
need jq

targets 5
mapfile -t URLS < <(members 5)
"$NETRAID" create vol --level 5 --log off "${URLS[@]}" >/dev/null
attach "${URLS[@]}"
load write 100MiB 1

# SIGTERM of the engine closes the array, so that it opens without a resync.
stop engine
attach "${URLS[@]}"
expect optimal "$(state)" "state after SIGTERM"
load verify 100MiB 1

# So does a terminal that goes, of which an engine that ignores SIGHUP, as nohup has it, takes no notice.
child=${PID[engine]} status=0
unset "PID[engine]"
kill -HUP "$child"
await_end "$child" 30 || fail "the engine does not end on SIGHUP"
wait "$child" || status=$?
expect 0 "$status" "status after SIGHUP"
trap '' HUP
attach "${URLS[@]}"
trap - HUP
expect optimal "$(state)" "state after SIGHUP"
kill -HUP "${PID[engine]}"
load verify 100MiB 1

# SIGKILL of the engine, in the middle of writing.
load write 100MiB 1 --rewritten 1 >/dev/null 2>&1 &
writer=$!
crash engine
wait $writer || true
attach "${URLS[@]}"
load verify 100MiB 1
# Without a log, parity is right again only then: a member that goes before takes data along.
next_event engine '.event == "resynced"' >/dev/null

# SIGTERM of each target in turn; it comes back, and is rebuilt.
for index in 0 1 2 3 4; do
    if [ $((index % 2)) = 0 ]; then stop m$index; else crash m$index; fi
    load verify 100MiB 1
    target m$index
    "$NETRAID" rebuild "$CONTROL" $index
    rebuilt
    expect optimal "$(state)" "state after member $index"
done
load verify 100MiB 1
stop engine
