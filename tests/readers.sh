# Arrays that are attached for reading only, beside who comes to write: a reader never shows what a writer has replaced, fails by
# itself, and keeps nobody from anything, alive or dead.
. "$(dirname "$0")/lib.sh"
need jq unshare qemu-io
[ "$(id -u)" = 0 ] || { say "needs root for a mount namespace"; exit 77; }

ROUNDS=${NETRAID_READERS_ROUNDS:-$([ "$NIGHTLY" = 1 ] && echo 20 || echo 1)}

mkdir -p /run/netraid
cat >"$WORK/elsewhere" <<'SH'
mount -t tmpfs none /run/netraid
[ ! -e /etc/machine-id ] || mount --bind "$1/machine-id" /etc/machine-id
shift
exec "$@"
SH

# reader NAME: attaches the array for reading, as another machine; sets AT[NAME].
declare -A AT=()
reader() {
    mkdir -p "$WORK/$1"
    tr -d - </proc/sys/kernel/random/uuid >"$WORK/$1/machine-id"
    launch "$1" unshare -m sh "$WORK/elsewhere" "$WORK/$1" "$NETRAID" attach --read-only --json --nbd 127.0.0.1:0 \
        --control "unix:$WORK/$1/control.sock" "${URLS[@]}"
    AT[$1]=$(jq -r '.exports[0].uri' <<<"${READY[$1]}")
}
reader_state() { "$NETRAID" status --json "unix:$WORK/$1/control.sock" | jq -r .state; }
has_failed() { [ "$(reader_state "$1")" = failed ]; }

# check_stale NAME: reads blocks that were replaced; each must be an error, and none what was there before.
check_stale() {
    local block out
    for ((block = 0; block < 150; block++)); do
        out=$(qemu-io -r -f raw -c "read -P 1 $((block * 64))k 4k" "${AT[$1]}" 2>&1) || true
        ! grep -q 'read 4096/4096' <<<"$out" || fail "block $block is stale at $1: $out"
    done
}
fill() { qemu-io -f raw -c "write -P $1 0 12M" "$NBD" >/dev/null; }

targets 3
mapfile -t URLS < <(members 3)
for log in on off; do
    "$NETRAID" create vol --force --level 5 --log $log "${URLS[@]}" >/dev/null
    for round in $(seq "$ROUNDS"); do
        attach "${URLS[@]}"
        fill 1
        # Beside a writer nobody attaches it for reading.
        refused "was not closed|is open on|is registered to another engine" "$NETRAID" attach --read-only --nbd 127.0.0.1:0 "${URLS[@]}"
        stop engine

        # Several read at once.
        reader one
        reader two
        for name in one two; do
            qemu-io -r -f raw -c 'read -P 1 0 12M' "${AT[$name]}" | grep -q 'read 12582912' || fail "$name does not read"
        done
        # One that died keeps nobody from writing, and is asked for by nobody.
        reader dead
        crash dead

        attach "${URLS[@]}"
        fill 2
        check_stale one
        await 5 has_failed two
        "$NETRAID" status "unix:$WORK/two/control.sock" | grep -q 'attach it anew' || fail "two does not say what to do"
        crash one two
        stop engine
        reader one
        qemu-io -r -f raw -c 'read -P 2 0 12M' "${AT[one]}" | grep -q 'read 12582912' || fail "one does not read what is new"
        # An end leaves nothing behind.
        stop one
        attach "${URLS[@]}"
        expect "true true true" "$("$NETRAID" status --json "$CONTROL" | jq -r '[.members[].exclusive] | join(" ")')" "exclusive"
        stop engine
    done
done
