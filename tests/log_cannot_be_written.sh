# Standard error and standard output that take nothing: their disk is full, their reader is gone or stands still.
# Targets and the engine serve on at debug level, lose a member, and end in good order; what could not be written
# is counted.
. "$(dirname "$0")/lib.sh"
need jq
export NETRAID_LOG=debug

# break_log NAME HOW: what NAME will write to standard error goes nowhere. Its pipe has a reader that reads nothing.
break_log() {
    rm -f "$WORK/$1.err"
    if [ "$2" = full ]; then
        ln -s /dev/full "$WORK/$1.err"
    else
        mkfifo "$WORK/$1.err"
        sleep 300 <"$WORK/$1.err" &
        PID[reader-$1]=$!
    fi
}

traces=()
for ((index = 0; index < 16; index++)); do traces+=(--filter trace); done
for how in full gone still; do
    members=("m0$how" "m1$how" "m2$how")
    for name in "${members[@]}" engine; do break_log "$name" "$how"; done
    # A line for each request, many times over: more than a pipe takes.
    for name in "${members[@]}"; do target "$name" 64MiB "${traces[@]}"; done
    mapfile -t URLS < <(uris "${members[@]}")
    "$NETRAID" create vol --level 5 "${URLS[@]}" >/dev/null || fail "$how: create"
    attach "${URLS[@]}"
    exec {EVENTS[engine]}<&-
    readers=()
    [ $how = full ] || readers=("${members[@]/#/reader-}" reader-engine)
    [ $how != gone ] || crash "${readers[@]}"
    timeout 60 "$NETRAID" load write "$NBD" --len 48MiB --seed 1 >/dev/null || fail "$how: write"
    crash "m1$how"
    timeout 60 "$NETRAID" load verify "$NBD" --len 48MiB --seed 1 >/dev/null || fail "$how: verify"
    expect faulty "$(member_state 1)" "$how: the lost member"
    stop engine
    stop "m0$how"
    stop "m2$how"
    [ $how != still ] || crash "${readers[@]}"
done

# Nobody takes the line that says that it is ready.
control=unix:$WORK/silent.sock
"$NETRAID" target --json --control "$control" --listen 127.0.0.1:0 --lun ram:16MiB \
    >/dev/full 2>/dev/full &
PID[silent]=$!
for ((try = 0; try < 100; try++)); do
    "$NETRAID" status --json "$control" >/dev/null 2>&1 && break
    sleep 0.05
done
"$NETRAID" status --json "$control" >/dev/null || fail "a target does not serve when it cannot say so"
stop silent

# A disk that was full takes lines again.
[ "$(id -u)" = 0 ] || exit 0
leave() { ! mountpoint -q "$WORK/logs" || umount --lazy "$WORK/logs"; }
at_end leave
mkdir "$WORK/logs"
mount -t tmpfs -o size=64k none "$WORK/logs"
rm -f "$WORK/last.err"
ln -s "$WORK/logs/log" "$WORK/last.err"
head -c 1M /dev/zero >"$WORK/logs/rest" 2>/dev/null || true
target last
# Each connection is a line.
"$NETRAID" examine "${URI[last]}" >/dev/null 2>&1 || true
rm "$WORK/logs/rest"
for ((try = 0; try < 100; try++)); do
    "$NETRAID" examine "${URI[last]}" >/dev/null 2>&1 || true
    grep -Eq '^netraid: [0-9]+ lines could not be written here$' "$WORK/logs/log" && break
    sleep 0.05
done
grep -E '^netraid: [0-9]+ lines could not be written here$' "$WORK/logs/log" || fail "lost lines are not counted"
stop last
