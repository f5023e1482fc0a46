# However quickstart ends, nothing that it started goes on, and its directory goes when it can.
. "$(dirname "$0")/lib.sh"
need jq pgrep

export TMPDIR=$WORK
start() {
    launch quickstart "$NETRAID" quickstart --json --members 3 --size 64MiB
    NBD=$(jq -r '.exports[0].uri' <<<"${READY[quickstart]}")
    mapfile -t children < <(pgrep -P "${PID[quickstart]}")
    expect 4 ${#children[@]} "processes that it started"
}
all_gone() {
    local child
    for child in "${children[@]}"; do
        await_end "$child" 20 || fail "process $child goes on after $1"
    done
}

start
load write 20MiB 1
load verify 20MiB 1
stop quickstart
all_gone SIGTERM
[ -z "$(find "$WORK" -maxdepth 1 -name 'netraid-quickstart.*')" ] || fail "its directory was left behind"

start
crash quickstart
all_gone SIGKILL

# A directory that was asked for stays, and is taken up again.
for round in first second; do
    launch quickstart "$NETRAID" quickstart --json --members 3 --size 64MiB --dir "$WORK/kept"
    NBD=$(jq -r '.exports[0].uri' <<<"${READY[quickstart]}")
    [ $round = second ] || load write 20MiB 1
    load verify 20MiB 1
    stop quickstart
done

# Ctrl-C reaches all of the terminal's foreground group: the array is closed before its members.
launch quickstart setsid "$NETRAID" quickstart --json --members 3 --size 64MiB --dir "$WORK/kept"
kill -INT -- "-${PID[quickstart]}"
await_end "${PID[quickstart]}" 20 || fail "Ctrl-C does not end it"
wait "${PID[quickstart]}" || fail "ended with $? after Ctrl-C"
unset "PID[quickstart]"
launch member "$NETRAID" target --json --listen 127.0.0.1:0 --lun "file:$WORK/kept/member0.img"
label=$("$NETRAID" examine --json "$(jq -r '.luns[0].uri' <<<"${READY[member]}")")
expect true "$(jq '.[0].label.clean' <<<"$label")" "whether the array was closed"
