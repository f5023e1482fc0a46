# Standard error and standard output that take nothing: their disk is full, their reader is gone or stands still.
# Targets and the engine serve on at debug level, lose a member, and end in good order; what could not be written
# is counted.
. "$(dirname "$0")/lib.sh"
need jq qemu-io
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

# A limit of a file's length: a log that may not grow, and a disk.
rm "$WORK/engine.err"
targets 3
mapfile -t URLS < <(members 3)
"$NETRAID" create limited --force --level 5 "${URLS[@]}" >/dev/null
soft=$(ulimit -Sf)
ulimit -Sf 0
attach "${URLS[@]}"
ulimit -Sf "$soft"
load write 8MiB 2 >/dev/null
crash m1
load write 8MiB 1 >/dev/null
load verify 8MiB 1 >/dev/null
expect faulty "$(member_state 1)" "the lost member of an engine whose log is at its limit"
stop engine
truncate -s 16M "$WORK/short.img"
ulimit -Sf 1024
launch short "$NETRAID" target --json --listen 127.0.0.1:0 --lun "file:$WORK/short.img"
ulimit -Sf "$soft"
URI[short]=$(jq -r '.luns[0].uri' <<<"${READY[short]}")
io() { qemu-io -f raw -c "$1" "${URI[short]}" >"$WORK/io" 2>&1 && ! grep -Eqi 'fail|error' "$WORK/io"; }
! io 'write 8M 64k' || fail "written beyond a limit"
grep -q 'No space left' "$WORK/io" || fail "not told of space: $(cat "$WORK/io")"
io 'write 64k 64k' || fail "the target is gone: $(cat "$WORK/io")"
stop short

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
