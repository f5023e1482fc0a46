# Data by name: put, get, cat, resume, rename, remove; who may not, may not; secrets are nowhere.
. "$(dirname "$0")/cluster/lib.sh"

mediator
for i in 1 2 3; do agent $i; done
soon known 3

for len in 0 1 4095 1048577 33554433; do
    head -c $len /dev/urandom >"$WORK/in"
    "$NETRAID" put -p "$WORK/in" "/a/b/$len"
    "$NETRAID" get "/a/b/$len" "$WORK/out"
    cmp "$WORK/in" "$WORK/out"
    "$NETRAID" cat "/a/b/$len" | cmp - "$WORK/in"
    expect $len "$("$NETRAID" stat --json "/a/b/$len" | jq .length_bytes)" "length"
    rm "$WORK/out"
done
expect 5 "$("$NETRAID" ls --json /a/b | jq '.entries | length')" "names"
"$NETRAID" put "$WORK/in" /a/b/1 2>/dev/null && fail "put over what is there"
head -c 5000 /dev/urandom >"$WORK/in"
"$NETRAID" put --force "$WORK/in" /a/b/1
"$NETRAID" cat /a/b/1 | cmp - "$WORK/in"
"$NETRAID" put --size 5000 - /a/stdin <"$WORK/in"
"$NETRAID" cat /a/stdin | cmp - "$WORK/in"
"$NETRAID" mv /a/b /a/c
"$NETRAID" cat /a/c/1 | cmp - "$WORK/in"
"$NETRAID" rm /a/c 2>/dev/null && fail "removed a directory that is not empty"
"$NETRAID" cat /a/b/1 2>/dev/null && fail "an old name"

# An interrupted put goes on where it was, and nobody sees it before it is whole.
head -c 800MiB /dev/zero | tr '\0' 'x' >"$WORK/large"
"$NETRAID" put "$WORK/large" /a/large & putting=$!
for _ in $(seq 600); do
    there=$("$NETRAID" stat --json --upload /a/large 2>/dev/null | jq .length_bytes || true)
    [ "${there:-0}" -gt 0 ] && break
    kill -0 $putting 2>/dev/null || break
    sleep 0.02
done
kill -KILL $putting 2>/dev/null && interrupted=1 || interrupted=0
wait $putting || true
if [ $interrupted = 1 ]; then
    "$NETRAID" cat /a/large >/dev/null 2>&1 && fail "half of it by its name"
    "$NETRAID" mediator status --json --access "$ADMIN" >/dev/null
    "$NETRAID" put --resume "$WORK/large" /a/large
fi
"$NETRAID" cat /a/large | cmp - "$WORK/large"

# Whoever is interrupted gives back what it had open, at once; so does who is read no longer.
plans() { "$NETRAID" mediator status --json --access "$ADMIN" | jq .plans; }
expect 0 "$(plans)" "plans before"
# interrupted SIGNAL COMMAND...: ends a command by a signal while it has something open.
interrupted() {
    local signal=$1 child status=0
    shift
    "$@" >"$WORK/pipe" 2>"$WORK/interrupted.err" <"$WORK/pipe" &
    child=$!
    for _ in $(seq 200); do
        [ "$(plans)" = 1 ] && break
        [ -d "/proc/$child" ] || fail "ended before it was interrupted: $*"
        sleep 0.05
    done
    kill "-$signal" "$child"
    wait "$child" || status=$?
    expect 1 $status "status after $signal of $*"
    grep -q "interrupted by a signal" "$WORK/interrupted.err" || fail "$(cat "$WORK/interrupted.err")"
    expect 0 "$(plans)" "plans after $signal of $*"
}
mkfifo "$WORK/pipe"
exec {pipe}<>"$WORK/pipe"
head -c 32MiB "$WORK/large" >"$WORK/medium"
for signal in INT TERM; do
    interrupted $signal "$NETRAID" cat /a/large
    interrupted $signal "$NETRAID" get --force --limit 1MiB/s /a/large "$WORK/out"
    interrupted $signal "$NETRAID" put --force --size 1GiB - /a/input
    interrupted $signal "$NETRAID" put --force --limit 1MiB/s "$WORK/medium" /a/medium
    grep -q -e --resume "$WORK/interrupted.err" || fail "$(cat "$WORK/interrupted.err")"
done
exec {pipe}>&-
"$NETRAID" rm --upload /a/input
"$NETRAID" put --resume "$WORK/medium" /a/medium
"$NETRAID" get --resume /a/large "$WORK/out"
cmp "$WORK/large" "$WORK/out"
rm "$WORK/out"
"$NETRAID" cat /a/medium | cmp - "$WORK/medium"
"$NETRAID" cat /a/large | head -c 1000 | cmp - <(head -c 1000 "$WORK/large")
expect 0 "$(plans)" "plans after a closed pipe"

# A reader changes nothing; a stranger nothing at all.
"$NETRAID" mediator access --access "$ADMIN" --role reader --name r -o "$WORK/reader.access"
"$NETRAID" cat --access "$WORK/reader.access" /a/c/1 | cmp - "$WORK/in"
"$NETRAID" rm --access "$WORK/reader.access" /a/c/1 2>/dev/null && fail "a reader removed something"
"$NETRAID" put --access "$WORK/reader.access" "$WORK/in" /a/x 2>/dev/null && fail "a reader put something"
jq '.token = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"' "$ADMIN" >"$WORK/none.access"
chmod 600 "$WORK/none.access"
"$NETRAID" ls --access "$WORK/none.access" / 2>/dev/null && fail "a stranger listed something"
chmod 644 "$WORK/none.access"
"$NETRAID" ls --access "$WORK/none.access" / 2>"$WORK/open.err" && fail "an access file for everybody"
grep -q "chmod 600" "$WORK/open.err" || fail "$(cat "$WORK/open.err")"

# Files that do not tell their length are not taken for empty ones.
refused "does not tell its length" "$NETRAID" put /proc/version /a/version
"$NETRAID" ls --json --uploads /a | jq -e '.entries | map(.path) | index("/a/version") | not' >/dev/null \
    || fail "an upload of a refused file"

# Off loopback nothing is in the clear.
for daemon in "mediator run --dir $WORK/m2 --listen" \
    "agent run --dir $WORK/a2 --rate 1MiB --portal 127.0.0.1:0 --listen"; do
    # shellcheck disable=SC2086
    "$NETRAID" $daemon 0.0.0.0:0 --insecure 2>"$WORK/insecure.err" && fail "$daemon in the clear"
    grep -q "TLS" "$WORK/insecure.err" || fail "$(cat "$WORK/insecure.err")"
done

# No token in what processes say, nor in their arguments.
for access in "$WORK"/mediator/*.access; do
    token=$(jq -r .token "$access")
    grep -rlF --include='*.err' --include='*.jsonl' -e "$token" "$WORK" && fail "a token in a log"
    grep -lF -e "$token" /proc/[0-9]*/cmdline 2>/dev/null && fail "a token among arguments"
done
for path in $("$NETRAID" ls --json /a/c | jq -r '.entries[].path') /a/large /a/medium /a/stdin; do
    "$NETRAID" rm "$path"
done
for _ in $(seq 100); do
    "$NETRAID" mediator check --json --access "$ADMIN" >"$WORK/check.json" || true
    [ "$(jq '.differences | length' "$WORK/check.json")" = 0 ] && break
    sleep 0.1
done
expect 0 "$(jq '.differences | length' "$WORK/check.json")" "differences: $(cat "$WORK/check.json")"
expect 0 "$(jq '.segments' "$WORK/check.json")" "segments that are left"
