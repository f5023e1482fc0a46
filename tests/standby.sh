# Two hosts run the same command for one array: one serves, the other one stands by. When the one that serves dies, or stands still,
# the other one serves in its place within ten seconds, by itself, with everything that was acknowledged; and the one that stood
# still writes nothing when it goes on, and ends.
. "$(dirname "$0")/lib.sh"
need jq unshare qemu-io
[ "$(id -u)" = 0 ] || { say "needs root for a mount namespace"; exit 77; }

ROUNDS=${NETRAID_STANDBY_ROUNDS:-$([ "$NIGHTLY" = 1 ] && echo 20 || echo 2)}
# From the death of an engine to service by the other one.
WITHIN_MS=10000

mkdir -p /run/netraid
cat >"$WORK/elsewhere" <<'SH'
mount -t tmpfs none /run/netraid
[ ! -e /etc/machine-id ] || mount --bind "$1/machine-id" /etc/machine-id
shift
exec "$@"
SH
# What moves an address between hosts: clients connect to vol.sock, which leads to the host that serves.
cat >"$WORK/move" <<'SH'
[ "$NETRAID_ARRAY" = vol ] || exit 1
ln -sfn "$1/nbd.sock" "$2/new.sock" && mv -T "$2/new.sock" "$2/vol.sock"
SH

# begin HOST [ARG...]: starts an engine on it, with or without more options, as another machine.
begin() {
    local host=$1 fifo
    shift
    mkdir -p "$WORK/$host"
    [ -e "$WORK/$host/machine-id" ] || tr -d - </proc/sys/kernel/random/uuid >"$WORK/$host/machine-id"
    fifo=$(mktemp -u "$WORK/$host.XXXXXX.out")
    mkfifo "$fifo"
    rm -f "$WORK/$host/nbd.sock"
    unshare -m sh "$WORK/elsewhere" "$WORK/$host" "$NETRAID" attach --json --nbd "unix:$WORK/$host/nbd.sock" \
        --control "unix:$WORK/$host/control.sock" "$@" "${URLS[@]}" >"$fifo" 2>>"$WORK/$host.err" &
    PID[$host]=$!
    exec {EVENTS[$host]}<"$fifo"
}
stand_by() { begin "$1" --standby --on-active "sh $WORK/move $1 $WORK" "${@:2}"; }

# serves HOST: waits until it does. waits HOST: waits until it stands by for another engine.
serves() { next_event "$1" '.event == "ready"' >/dev/null; }
waits() { next_event "$1" '.event == "standby" and .state == "alive"' >/dev/null; }
now_ms() { date +%s%3N; }
# within SINCE WHAT
within() {
    local took=$(($(now_ms) - $1))
    say "service $took ms after $2"
    [ $took -le $WITHIN_MS ] || fail "service came after $took ms"
}
other() { [ "$1" = a ] && echo b || echo a; }
# ended HOST: its process ends by itself, and not with 0.
ended() {
    local child=${PID[$1]} status=0
    await_end "$child" 30 || fail "$1 does not end"
    unset "PID[$1]"
    wait "$child" || status=$?
    [ $status != 0 ] || fail "$1 ended with status 0"
}

targets 3
mapfile -t URLS < <(members 3)
"$NETRAID" create vol --level 5 "${URLS[@]}" >/dev/null
NBD="nbd+unix:///vol?socket=$WORK/vol.sock"

stand_by a
serves a
stand_by b
waits b
CONTROL=unix:$WORK/b/control.sock
expect "standby alive" "$("$NETRAID" status --json "$CONTROL" | jq -r '.kind + " " + .state')" "b's status"
"$NETRAID" status "$CONTROL" | grep -q "standing by: array 'vol' is open on" || fail "b does not say for whom it stands by"
[ ! -e "$WORK/b/nbd.sock" ] || fail "who stands by listens"
refused "stands by" "$NETRAID" scrub "$CONTROL" --start
active=a

# The engine dies again and again under load; a client keeps the record of what was acknowledged.
launch client "$NETRAID" hammer --json "$NBD" --len 24MiB --seed 7
next_event client '.event == "verified"' >/dev/null
for round in $(seq "$ROUNDS"); do
    sleep "1.$((RANDOM % 10))"
    died=$(now_ms)
    crash $active
    active=$(other $active)
    serves $active
    within "$died" "the death of an engine"
    next_event client '.event == "verified"' >/dev/null
    stand_by "$(other $active)"
    waits "$(other $active)"
done
stop client

# The engine stands still while it writes, is taken over, and goes on.
for round in $(seq "$ROUNDS"); do
    load write 24MiB "$round"
    old=$active
    (while "$NETRAID" load write "nbd+unix:///vol?socket=$WORK/$old/nbd.sock" --len 24MiB --seed 1 --rewritten 2; do :; done) \
        >/dev/null 2>&1 &
    writer=$!
    sleep "0.$((RANDOM % 10))"
    died=$(now_ms)
    kill -STOP "${PID[$old]}"
    active=$(other "$old")
    serves $active
    within "$died" "an engine stood still"
    load write 24MiB $((round + 1000))
    kill -CONT "${PID[$old]}"
    ended "$old"
    grep -q "another engine has taken it over" "$WORK/$old.err" || fail "$old does not say why it ended"
    wait $writer || true
    load verify 24MiB $((round + 1000))
    stand_by "$old"
    waits "$old"
done
CONTROL=unix:$WORK/$active/control.sock
expect 0 "$("$NETRAID" scrub --json "$CONTROL" --start --rate max --wait | jq '.wrong + .unrepaired')" "what is wrong"

# A virtual machine's disk connects again, and sees no error.
mkfifo "$WORK/io.in"
qemu-io --image-opts "driver=nbd,server.type=unix,server.path=$WORK/vol.sock,export=vol,reconnect-delay=30" \
    <"$WORK/io.in" >"$WORK/io.out" 2>&1 &
io=$!
exec {orders}>"$WORK/io.in"
say "write -P 65 0 4M" >&$orders
await 20 grep -q 'wrote 4194304/4194304' "$WORK/io.out"
died=$(now_ms)
crash $active
say "write -P 66 1M 1M" >&$orders
say "read -P 65 0 1M" >&$orders
say "read -P 66 1M 1M" >&$orders
active=$(other $active)
serves $active
within "$died" "the death of an engine"
exec {orders}>&-
wait $io || true
! grep -Eqi 'error|fail' "$WORK/io.out" || fail "the disk saw an error: $(cat "$WORK/io.out")"
expect 2 "$(grep -c 'read 1048576/1048576' "$WORK/io.out")" "reads of what was written before and after"

# An array that is closed is opened at once; what moves the address and fails leaves it closed.
begin c --standby --on-active 'exit 7'
waits c
CONTROL=unix:$WORK/$active/control.sock
"$NETRAID" stop "$CONTROL" >/dev/null
unset "PID[$active]"
ended c
grep -q -- "--on-active 'exit 7' failed (exit status: 7); nothing is exported" "$WORK/c.err" || fail "c does not say why it ended"
[ ! -e "$WORK/c/nbd.sock" ] || fail "an export listens after the command failed"

# An engine that was not told that others stand by is never taken for dead by the time.
begin a
serves a
stand_by b
next_event b '.event == "standby" and .state == "no_heartbeats"' | grep -q -- '--take-over' || fail "b does not say what to do"
"$NETRAID" stop "unix:$WORK/a/control.sock" >/dev/null
unset 'PID[a]'
serves b
stop b
