# Files and sockets of all daemons are for their owner alone, whatever the umask and the directory, also those that an
# earlier program left open to others; what another user has planted is neither followed nor used.
. "$(dirname "$0")/lib.sh"
need jq python3 setpriv curl prlimit
[ "$(id -u)" = 0 ] || fail "needs root, to be another user as well"

# open_to_others DIR...: names of files and sockets that others may read or write.
open_to_others() { find "$@" ! -type d ! -type l ! -type p -perm /077 ! -name '*.out' ! -name '*.err' | sort; }
as_nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }

chmod 755 "$WORK"
umask 0
mkdir -m 755 "$WORK/m" "$WORK/a" "$WORK/t"
mediator() { launch mediator "$NETRAID" mediator run --json --dir "$WORK/m" --listen 127.0.0.1:0; }
agent() {
    launch agent "$NETRAID" agent run --json --dir "$WORK/a" --space 1GiB --rate 100MiB --listen 127.0.0.1:0 \
        --portal 127.0.0.1:0 --mediator "$WORK/m/agent.access"
}
mediator
agent
export NETRAID_ACCESS=$WORK/m/admin.access
"$NETRAID" volume create /v --size 64MiB --survives 0 --level 0 --members 1 >/dev/null
expect "" "$(open_to_others "$WORK/m" "$WORK/a")" "files of mediator and agent open to others"
"$NETRAID" mediator access --role client --name joe -o "$WORK/joe.access"
expect 600 "$(stat -c %a "$WORK/joe.access")" "mode of a new access file"
expect 1 "$("$NETRAID" mediator log | grep -Fc ' for joe:')" "tokens made for joe"
# A token is not made where its file would take the place of something else.
ln -s /dev/stdout "$WORK/link.access"
mkfifo "$WORK/pipe.access"
touch "$WORK/theirs.access"
chown 65534 "$WORK/theirs.access"
for name in link pipe theirs; do
    refused 'standard output' "$NETRAID" mediator access --role client --name "$name" -o "$WORK/$name.access"
    if "$NETRAID" mediator log | grep -F " for $name:" >&2; then fail "a token was made for $name"; fi
done
[ -L "$WORK/link.access" ] && [ -p "$WORK/pipe.access" ] || fail "an access file took the place of a link or a pipe"
expect 0 "$(stat -c %s "$WORK/theirs.access")" "bytes in another user's file"

# Nor does one stay that reached nobody: where its file cannot be written, and where standard output is full or its
# reader is gone.
bearers() {
    jq -r .authority "$NETRAID_ACCESS" >"$WORK/authority.pem"
    curl -sS --cacert "$WORK/authority.pem" -H "Authorization: Bearer $(jq -r .token "$NETRAID_ACCESS")" \
        "$(jq -r .mediator "$NETRAID_ACCESS")/v1/access" | jq -r '.[].name' | sort
}
before=$(bearers)
grep -qx joe <<<"$before" || fail "the token of joe is not listed: $before"
GRANT=("$NETRAID" mediator access --role client)
refused 'missing/d/f' "${GRANT[@]}" --name missing -o "$WORK/missing/d/f"
refused '/proc/x' "${GRANT[@]}" --name proc -o /proc/x
refused 'File too large' prlimit --fsize=0 "${GRANT[@]}" --name limit -o "$WORK/limit"
"${GRANT[@]}" --name full 2>"$WORK/full.said" >/dev/full && fail "a token went to a full standard output"
grep -q 'was taken back' "$WORK/full.said" || fail "not told: $(cat "$WORK/full.said")"
mkfifo "$WORK/reader"
exec {reader}<>"$WORK/reader" {writer}>"$WORK/reader"
exec {reader}<&-
# The pipe has no reader now.
"${GRANT[@]}" --name pipe >&"$writer" 2>"$WORK/pipe.said" && fail "a token went to nobody"
exec {writer}>&-
grep -q 'was taken back' "$WORK/pipe.said" || fail "not told: $(cat "$WORK/pipe.said")"
expect "$before" "$(bearers)" "bearer tokens after commands that failed"
expect "" "$(find "$WORK" -name '*.new-*')" "files of commands that failed"

# The usual log of a command is not written through what another user planted.
mkdir -m 777 "$WORK/shared" "$WORK/shared/t"
printf '{}\n' >"$WORK/log"
as_nobody ln -s "$WORK/log" "$WORK/shared/netraid-evaluate.jsonl"
cd "$WORK/shared"
refused 'belongs to user 65534' "$NETRAID" evaluate t --tests host --file-size 8MiB
cd "$OLDPWD"
expect '{}' "$(cat "$WORK/log")" "what another user's link led to"

# Killed, and then as an earlier program would have left it.
crash mediator agent
find "$WORK/m" "$WORK/a" -type f -exec chmod 666 {} +
mediator
agent
expect "" "$(open_to_others "$WORK/m" "$WORK/a")" "files of an earlier program open to others"
"$NETRAID" stat /v >/dev/null || fail "the store lost what it had"
stop agent
stop mediator

# In the place of a lock and of a store: somebody else's link.
for name in lock sqlite; do
    mkdir -m 777 "$WORK/$name"
    as_nobody ln -s "$WORK/victim" "$WORK/$name/mediator.$name"
    refused 'symbolic link' "$NETRAID" mediator run --dir "$WORK/$name" --listen 127.0.0.1:0
    [ ! -e "$WORK/victim" ] || fail "the link of mediator.$name was followed"
done
# In the place of what SQLite writes: a second name of a file that this user needs.
for name in mediator.sqlite-shm mediator.sqlite-wal mediator.lock admin.access; do
    mkdir -m 777 "$WORK/hard"
    say victim >"$WORK/victim"
    ln "$WORK/victim" "$WORK/hard/$name"
    refused 'hard links' "$NETRAID" mediator run --dir "$WORK/hard" --listen 127.0.0.1:0
    expect victim "$(cat "$WORK/victim")" "bytes of the file behind $name"
    expect 666 "$(stat -c %a "$WORK/victim")" "mode of the file behind $name"
    rm -r "$WORK/hard" "$WORK/victim"
done
# An access file that somebody else made before the first start.
mkdir -m 777 "$WORK/first"
as_nobody touch "$WORK/first/admin.access"
refused 'belongs to user 65534' "$NETRAID" mediator run --dir "$WORK/first" --listen 127.0.0.1:0
# Keys of certificates that somebody else knows, or leads to.
cp "$WORK/m/authority.pem" "$WORK/cert.pem"
given() {
    refused "$1" "$NETRAID" mediator run --dir "$WORK/given" --listen 127.0.0.1:0 --tls-cert "$WORK/cert.pem" \
        --tls-key "$2" --tls-authority "$WORK/cert.pem"
}
cp "$WORK/m/authority.key" "$WORK/given.key"
chmod 644 "$WORK/given.key"
given 'chmod 600' "$WORK/given.key"
chmod 600 "$WORK/given.key"
ln -s given.key "$WORK/link.key"
chown -h 65534 "$WORK/link.key"
given 'belongs to user 65534' "$WORK/link.key"
chown 65534 "$WORK/given.key"
given 'belongs to user 65534' "$WORK/given.key"
# A key that somebody else knows.
mkdir -m 777 "$WORK/key"
as_nobody touch "$WORK/key/authority.key"
refused 'belongs to user 65534' "$NETRAID" mediator run --dir "$WORK/key" --listen 127.0.0.1:0
# An access file that somebody else wrote.
cp "$WORK/joe.access" "$WORK/other.access"
chown 65534 "$WORK/other.access"
refused 'belongs to user 65534' "$NETRAID" mediator status --access "$WORK/other.access"

# Disks, their locks, and the sockets of an array.
target m0 64MiB --control "unix:$WORK/t/target.sock"
"$NETRAID" create vol --level 0 "${URI[m0]}" >/dev/null
launch engine "$NETRAID" attach --json --nbd "unix:$WORK/t/nbd.sock" --control "unix:$WORK/t/engine.sock" "${URI[m0]}"
expect 3 "$(find "$WORK/t" -type s | wc -l)" "sockets"
expect "" "$(open_to_others "$WORK/t" "$WORK/m0.img")" "sockets and disks open to others"
lock=$(find /run/netraid -name "*.lock" -newer "$WORK/joe.access" | head -n 1)
expect 600 "$(stat -c %a "$lock")" "mode of an array's lock"
if as_nobody "$NETRAID" status "unix:$WORK/t/engine.sock" 2>/dev/null; then fail "another user asks an array"; fi
stop engine
stop m0
